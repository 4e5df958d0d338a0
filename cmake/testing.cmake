# rlk_test(name SOURCES a.cc ... LIBS rlk_ops ... [LABELS extra ...])
# One GoogleTest program, registered as up to three ctest entries: the suites whose names end in
# Invariance (label `invariance`), those that end in Twin (label `twin`), and all others.
include(GoogleTest)

function(rlk_test name)
  cmake_parse_arguments(ARG "" "" "SOURCES;LIBS;LABELS" ${ARGN})
  add_executable(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE ${ARG_LIBS} rlk_flags GTest::gtest GTest::gtest_main)
  target_compile_definitions(${name} PRIVATE RLK_SOURCE_DIR="${PROJECT_SOURCE_DIR}")
  add_dependencies(rlk_tests ${name})

  set(all_text "")
  foreach(source ${ARG_SOURCES})
    file(READ ${source} text)
    string(APPEND all_text "${text}")
  endforeach()
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${ARG_SOURCES})

  add_test(NAME ${name} COMMAND ${name} --gtest_filter=-*Invariance.*:*Invariance/*:*Twin.*:*Twin/*
           WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
  # Admission records of tests stay out of the user's cache folder.
  set(environment "XDG_CACHE_HOME=${PROJECT_BINARY_DIR}/test-cache")
  set_tests_properties(${name} PROPERTIES LABELS "${ARG_LABELS}" ENVIRONMENT "${environment}")
  foreach(kind Invariance Twin)
    if(all_text MATCHES "TEST(_P|_F)?\\([A-Za-z0-9]*${kind},")
      string(TOLOWER ${kind} label)
      add_test(NAME ${name}.${label} COMMAND ${name} --gtest_filter=*${kind}.*:*${kind}/*
               WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
      set_tests_properties(${name}.${label} PROPERTIES LABELS "${label};${ARG_LABELS}"
                           ENVIRONMENT "${environment}")
    endif()
  endforeach()
endfunction()
