# `make install`: the program, the libraries with their headers, and a CMake package `rlkernel`.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)
get_property(libraries GLOBAL PROPERTY RLK_LIBRARIES)
install(TARGETS ${libraries} rlk_flags EXPORT rlkernel-targets
  ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(TARGETS rlk_c EXPORT rlkernel-c-targets LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
if(TARGET rlk)
  install(TARGETS rlk RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
endif()
install(DIRECTORY ${PROJECT_SOURCE_DIR}/rlk DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}
  FILES_MATCHING PATTERN "*.h" PATTERN bench EXCLUDE)
foreach(targets rlkernel-targets rlkernel-c-targets)
  install(EXPORT ${targets} NAMESPACE rlk:: DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/rlkernel)
endforeach()
configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/rlkernel-config.cmake.in
  ${PROJECT_BINARY_DIR}/rlkernel-config.cmake
  INSTALL_DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/rlkernel)
write_basic_package_version_file(${PROJECT_BINARY_DIR}/rlkernel-config-version.cmake
  COMPATIBILITY SameMajorVersion)
install(FILES ${PROJECT_SOURCE_DIR}/cmake/FindOneDNN.cmake
  ${PROJECT_BINARY_DIR}/rlkernel-config.cmake
  ${PROJECT_BINARY_DIR}/rlkernel-config-version.cmake
  DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/rlkernel)
