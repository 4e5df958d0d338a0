# cmake -DPROGRAM=conform_digest -DGOLDEN=conform_digests.txt -DPROFILES=portable,... [-DTWIN=ON]
#       -P compare.cmake
# Every line that PROGRAM prints for PROFILES must end in the digest that GOLDEN has for its profile; of a twin,
# whose reference is wrong, the line of the reference must not.
file(STRINGS ${GOLDEN} golden)
string(REPLACE "," ";" profiles ${PROFILES})
execute_process(COMMAND ${PROGRAM} ${profiles} OUTPUT_VARIABLE lines OUTPUT_STRIP_TRAILING_WHITESPACE
  COMMAND_ERROR_IS_FATAL ANY)
message("${lines}")

string(REPLACE "\n" ";" lines "${lines}")
list(LENGTH lines num_lines)
if(num_lines LESS 3)
  message(FATAL_ERROR "no lines of the reference and one instruction set")
endif()
if(TWIN)
  list(FILTER lines INCLUDE REGEX "^portable reference ")
endif()
foreach(line IN LISTS lines)
  string(REGEX REPLACE "^([^ ]+) .* ([0-9a-f]+)$" "\\1 \\2" found "${line}")
  list(FIND golden "${found}" at)
  if(at GREATER_EQUAL 0)
    if(TWIN)
      message(FATAL_ERROR "the same digest: ${line}")
    endif()
  elseif(NOT TWIN)
    message(FATAL_ERROR "another digest than in ${GOLDEN}: ${line}")
  endif()
endforeach()
