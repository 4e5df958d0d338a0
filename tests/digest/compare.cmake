# cmake -DPROGRAM=conform_digest -DRLK=rlk [-DTWIN=ON] -P compare.cmake
# Every line that PROGRAM prints must end in the digest that RLK prints for the reference; of a
# twin, whose reference is wrong, the line of the reference must not.
function(run result)
  execute_process(COMMAND ${ARGN} OUTPUT_VARIABLE out OUTPUT_STRIP_TRAILING_WHITESPACE
    COMMAND_ERROR_IS_FATAL ANY)
  set(${result} "${out}" PARENT_SCOPE)
endfunction()

run(wanted ${RLK} conform --digest --backend reference)
if(NOT wanted MATCHES "^[0-9a-f]+$")
  message(FATAL_ERROR "no digest: ${wanted}")
endif()
run(lines ${PROGRAM})
message("${RLK}: ${wanted}\n${PROGRAM}:\n${lines}")

string(REPLACE "\n" ";" lines "${lines}")
list(LENGTH lines num_lines)
if(num_lines LESS 3)
  message(FATAL_ERROR "no lines of the reference and one instruction set")
endif()
if(TWIN)
  list(FILTER lines INCLUDE REGEX "^reference ")
endif()
foreach(line IN LISTS lines)
  if(line MATCHES " ${wanted}$")
    if(TWIN)
      message(FATAL_ERROR "the same digest: ${line}")
    endif()
  elseif(NOT TWIN)
    message(FATAL_ERROR "another digest: ${line}")
  endif()
endforeach()
