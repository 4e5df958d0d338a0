# Installs BUILD into a folder of its own and builds and runs programs against it.
function(run)
  execute_process(COMMAND ${ARGV} RESULT_VARIABLE result OUTPUT_VARIABLE output
    ERROR_VARIABLE output)
  if(NOT result EQUAL 0)
    string(JOIN " " command ${ARGV})
    message(FATAL_ERROR "${command}\n${output}")
  endif()
endfunction()

file(REMOVE_RECURSE ${SCRATCH})
run(${CMAKE_COMMAND} --install ${BUILD} --prefix ${SCRATCH}/prefix)

foreach(program examples/c:rlk_example tests/install/consumer:consumer)
  string(REPLACE ":" ";" parts ${program})
  list(GET parts 0 folder)
  list(GET parts 1 name)
  run(${CMAKE_COMMAND} -S ${SOURCE}/${folder} -B ${SCRATCH}/${name} -G ${GENERATOR}
    -DCMAKE_PREFIX_PATH=${SCRATCH}/prefix -DCMAKE_C_COMPILER=${CC} -DCMAKE_CXX_COMPILER=${CXX})
  run(${CMAKE_COMMAND} --build ${SCRATCH}/${name})
  run(${SCRATCH}/${name}/${name})
endforeach()

# Nothing that was installed may point back to where it was built.
execute_process(COMMAND grep -rF --include=*.cmake -e ${SOURCE}/ -e ${BUILD}/ ${SCRATCH}/prefix
  RESULT_VARIABLE nothing_found OUTPUT_VARIABLE found)
if(NOT nothing_found EQUAL 1)
  message(FATAL_ERROR "the installed package names the source or build folder:\n${found}")
endif()
