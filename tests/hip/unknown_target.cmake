# cmake -DGPU_TARGETS=gfx803 -P unknown_target.cmake
cmake_minimum_required(VERSION 3.25)
include(${CMAKE_CURRENT_LIST_DIR}/../../cmake/hip.cmake)
