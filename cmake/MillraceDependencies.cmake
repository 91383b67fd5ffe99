# Everything Millrace links, all of it from the distribution. `make setup` installs the packages.

# Programs in PATH do not say where libraries are: with conda or pyenv active, CMake would take theirs, which lack half.
set(CMAKE_FIND_USE_SYSTEM_ENVIRONMENT_PATH OFF)
# Python packages that `make setup` installs belong to the distribution's Python, whatever stands first in PATH. pip chooses its own.
if(NOT DEFINED Python3_EXECUTABLE AND EXISTS /usr/bin/python3)
  set(Python3_EXECUTABLE /usr/bin/python3)
endif()
find_package(Python3 REQUIRED COMPONENTS Interpreter)
find_package(PkgConfig REQUIRED)
find_package(Threads REQUIRED)
find_package(fmt REQUIRED)
find_package(nlohmann_json 3.11 REQUIRED)
find_package(OpenSSL REQUIRED)
find_package(CURL REQUIRED)
find_package(ZLIB REQUIRED)
find_package(yaml-cpp REQUIRED)
if(NOT TARGET yaml-cpp::yaml-cpp)  # before 0.8
  add_library(yaml-cpp::yaml-cpp ALIAS yaml-cpp)
endif()
find_package(pugixml REQUIRED)
find_package(simdjson REQUIRED)
find_package(CLI11 REQUIRED)
pkg_check_modules(ZSTD REQUIRED IMPORTED_TARGET libzstd)
pkg_check_modules(EDIT REQUIRED IMPORTED_TARGET libedit)
pkg_check_modules(FUSE3 REQUIRED IMPORTED_TARGET fuse3)
pkg_check_modules(RE2 REQUIRED IMPORTED_TARGET re2)
# re2.pc asks for -pthread. Clang refuses precompiled headers that were compiled without that option.
set_property(TARGET PkgConfig::RE2 PROPERTY INTERFACE_COMPILE_OPTIONS)

# A machine that only runs the programs may lack some packages that tests need.
if(MILLRACE_TESTS)
  find_package(GTest 1.12 QUIET)
  if(GTest_FOUND AND TARGET GTest::gmock AND TARGET GTest::gmock_main)
    include(GoogleTest)
  else()
    message(STATUS "GoogleTest 1.12 with GoogleMock is not installed: no tests are built")
    set(MILLRACE_TESTS OFF)
  endif()
endif()
unset(CMAKE_FIND_USE_SYSTEM_ENVIRONMENT_PATH)
