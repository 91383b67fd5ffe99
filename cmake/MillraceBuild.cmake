# Compiler settings, and the three functions every CMakeLists.txt of this tree is written with.
set(CMAKE_CXX_STANDARD 23)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS ON)  # statement expressions (MR_TRY)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)
# Programs find libraries in the same places in the build folder and after installation.
set(CMAKE_BUILD_WITH_INSTALL_RPATH ON)
set(CMAKE_INSTALL_RPATH_USE_LINK_PATH ON)
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "" FORCE)
endif()
# Assertions stay on: a corrupted state must stop the process, not reach the bucket. Line numbers are for debuggers and
# for packages of symbols (make package): without them, a build writes a fifth of the bytes.
option(MILLRACE_LINE_NUMBERS "Compile line numbers into programs" OFF)
set(CMAKE_CXX_FLAGS_RELEASE "-O2")
if(MILLRACE_LINE_NUMBERS)
  string(APPEND CMAKE_CXX_FLAGS_RELEASE " -g1")
endif()

# For vector loops: reductions in lanes (omp simd) and no errno from sqrt, but NaN and infinity as IEEE has them.
set(MILLRACE_LOOP_OPTIONS -O3 -fno-math-errno -fno-trapping-math -fopenmp-simd)

option(MILLRACE_ENGINE "Build the modules that need libtorch (engine, train, serve)" ON)
option(MILLRACE_TESTS "Build tests" ON)
option(MILLRACE_FUZZ "Build fuzzers (clang)" OFF)
option(MILLRACE_BENCHMARKS "Build benchmarks" OFF)
set(MILLRACE_SANITIZE "" CACHE STRING "address;undefined or thread")

add_compile_options(-Wall -Wextra -Wno-missing-field-initializers -fno-omit-frame-pointer)
add_compile_options(-fPIC)  # programs too (CMake gives them -fPIE): they share precompiled headers with libraries
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # False alarms of GCC 12: in std::string (its bug 105651) and around std::expected.
  add_compile_options(-Wno-restrict -Wno-maybe-uninitialized)
  add_compile_options(-fpch-preprocess -Wno-invalid-pch)
  # Fewer collections of the compiler's garbage: a tenth of its time, for a quarter more memory (in KiB).
  add_compile_options("SHELL:--param ggc-min-heapsize=1048576")
  if(CMAKE_UNITY_BUILD)  # GCC takes the joined files for headers
    add_compile_options(-Wno-subobject-linkage)
  endif()
endif()
if(CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
  # libstdc++ uses what it deprecates; clang reports that if the header was precompiled. g++ reports our own uses.
  add_compile_options(-Wthread-safety -Wno-gnu-statement-expression -Wno-unknown-warning-option
    -Wno-deprecated-declarations)
endif()
if(MILLRACE_SANITIZE)
  list(JOIN MILLRACE_SANITIZE "," sanitizers)
  add_compile_options(-fsanitize=${sanitizers} -fno-sanitize-recover=all)
  add_link_options(-fsanitize=${sanitizers})
endif()

# A batch of files takes up to 1.7 GB to compile. Ninja counts cores alone.
cmake_host_system_information(RESULT memory QUERY TOTAL_PHYSICAL_MEMORY)  # MiB
math(EXPR jobs "${memory} / 1500")
if(jobs LESS 1)
  set(jobs 1)
endif()
set_property(GLOBAL PROPERTY JOB_POOLS millrace_compile=${jobs})
set(CMAKE_JOB_POOL_COMPILE millrace_compile)

# ccache and mold only save time: used if they work.
function(millrace_find_tool variable name)
  find_program(${variable} ${name})
  if(${variable})
    execute_process(COMMAND ${${variable}} --version OUTPUT_QUIET ERROR_QUIET RESULT_VARIABLE failed)
    if(failed)
      message(STATUS "${${variable}} does not run: building without it")
      set(${variable} "" PARENT_SCOPE)
    endif()
  endif()
endfunction()

millrace_find_tool(CCACHE_PROGRAM ccache)
if(CCACHE_PROGRAM)
  # Without the sloppiness ccache would not cache files that use a precompiled header. The other two let clones of the
  # repository in different folders share what they compiled. So paths are relative in debug information, in assertions
  # and in what GoogleTest keeps of them.
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env CCACHE_SLOPPINESS=pch_defines,time_macros
    CCACHE_BASEDIR=${PROJECT_SOURCE_DIR} CCACHE_NOHASHDIR=1 ${CCACHE_PROGRAM})
  add_compile_options(-ffile-prefix-map=${PROJECT_SOURCE_DIR}=.)
endif()
millrace_find_tool(MOLD_PROGRAM mold)
if(MOLD_PROGRAM)
  include(CheckLinkerFlag)
  check_linker_flag(CXX -fuse-ld=mold MILLRACE_MOLD_LINKS)
  if(MILLRACE_MOLD_LINKS)
    add_link_options(-fuse-ld=mold)
    add_library(millrace_thread_local_alignment OBJECT ${CMAKE_CURRENT_LIST_DIR}/thread_local_alignment.cc)
  endif()
endif()

add_custom_target(millrace_generated)  # what is written while building: tools/lint reads it

# Every program and shared library calls it: see thread_local_alignment.cc.
function(millrace_align_thread_locals target)
  if(TARGET millrace_thread_local_alignment)
    target_link_libraries(${target} PRIVATE $<TARGET_OBJECTS:millrace_thread_local_alignment>)
  endif()
endfunction()

add_link_options(-Wl,--build-id=sha1)  # debuggers find separate debug symbols by it (mold adds none by default)

# Modules and programs that wait more than they compute: -O1 compiles them in two thirds of the time.
set(MILLRACE_WAITING_OPTIONS -O1)

# millrace_module(NAME [PUBLIC a.h ...] SOURCES a.cc ... [WAITING] [DEPS module ...] [LIBS library ...]
#                 [TESTS a_test.cc ...] [TEST_DEPS module ...])
#
# One folder, one static library millrace::NAME, and, where there are tests, one program NAME_test whose cases ctest runs
# one by one. WAITING: see MILLRACE_WAITING_OPTIONS. OWN_PRECOMPILED: the target sets its own precompiled headers. DEPS are
# other modules; LIBS are outside libraries that the module's headers need or that it links. PUBLIC headers are installed
# for C++ programs of others (MillraceLibraries.cmake). They include each other and the standard library, nothing else.
function(millrace_module name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "OWN_PRECOMPILED;WAITING" "" "PUBLIC;SOURCES;DEPS;LIBS;TESTS;TEST_DEPS")
  string(REPLACE "/" "_" target ${name})
  add_library(millrace_${target} STATIC ${arg_SOURCES})
  add_library(millrace::${target} ALIAS millrace_${target})
  target_include_directories(millrace_${target} PUBLIC ${PROJECT_SOURCE_DIR})
  list(TRANSFORM arg_PUBLIC PREPEND ${CMAKE_CURRENT_SOURCE_DIR}/)
  set_target_properties(millrace_${target} PROPERTIES MILLRACE_PUBLIC "${arg_PUBLIC}" MILLRACE_LIBS "${arg_LIBS}")
  list(TRANSFORM arg_DEPS PREPEND millrace::)
  target_link_libraries(millrace_${target} PUBLIC ${arg_DEPS} ${arg_LIBS})
  if(arg_WAITING)
    target_compile_options(millrace_${target} PRIVATE ${MILLRACE_WAITING_OPTIONS})
    target_precompile_headers(millrace_${target} REUSE_FROM millrace_waiting_precompiled)
  elseif(NOT arg_OWN_PRECOMPILED)
    target_precompile_headers(millrace_${target} REUSE_FROM millrace_precompiled)
  endif()
  if(arg_TESTS AND MILLRACE_TESTS)
    list(TRANSFORM arg_TEST_DEPS PREPEND millrace::)
    millrace_test(${target}_test SOURCES ${arg_TESTS} LIBS millrace::${target} ${arg_TEST_DEPS})
  endif()
endfunction()

set(MILLRACE_TEST_OPTIONS -O0)  # compiles in half of the time; what is tested is compiled as for users

# millrace_test(NAME [WHOLE] [TORCH] SOURCES ... LIBS ... [TIMEOUT s] [LABEL l]): a GoogleTest program; each
# case is a ctest test, or with WHOLE the program is one. TORCH: its sources include libtorch. A program
# that is WHOLE and TORCH computes with one thread: on a busy machine, each wait of one thread for another takes
# milliseconds.
# Tests find programs under MILLRACE_BIN and files under MILLRACE_SOURCE.
function(millrace_test name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "WHOLE;TORCH" "TIMEOUT;LABEL" "SOURCES;LIBS")
  if(NOT MILLRACE_TESTS)
    return()
  endif()
  if(NOT arg_TIMEOUT)
    set(arg_TIMEOUT 600)
  endif()
  add_executable(${name} ${arg_SOURCES})
  target_link_libraries(${name} PRIVATE ${arg_LIBS} GTest::gmock_main)
  millrace_align_thread_locals(${name})
  target_compile_options(${name} PRIVATE ${MILLRACE_TEST_OPTIONS})
  if(arg_TORCH)
    target_precompile_headers(${name} REUSE_FROM millrace_torch_test_precompiled)
  else()
    target_precompile_headers(${name} REUSE_FROM millrace_test_precompiled)
  endif()
  # Small batches: fixtures of different files may have one name.
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests UNITY_BUILD_BATCH_SIZE 16)
  # gtest_discover_tests flattens lists, so that a property can hold one value only: hence a label, and two ways to set
  # an environment variable.
  set(labels)
  if(arg_LABEL)
    set(labels LABELS ${arg_LABEL})
  endif()
  if(arg_WHOLE)
    set(environment MILLRACE_BIN=${CMAKE_RUNTIME_OUTPUT_DIRECTORY} MILLRACE_SOURCE=${PROJECT_SOURCE_DIR})
    if(arg_TORCH)
      list(APPEND environment OMP_NUM_THREADS=1)
    endif()
    add_test(NAME ${name} COMMAND ${name})
    # COST: they begin first, where ctest does not know yet how long they take.
    set_tests_properties(${name} PROPERTIES TIMEOUT ${arg_TIMEOUT} COST 60 ${labels} ENVIRONMENT "${environment}")
    return()
  endif()
  gtest_discover_tests(${name} TEST_PREFIX ${name}. DISCOVERY_MODE PRE_TEST
    PROPERTIES TIMEOUT ${arg_TIMEOUT} ${labels}
      ENVIRONMENT "MILLRACE_BIN=${CMAKE_RUNTIME_OUTPUT_DIRECTORY}"
      ENVIRONMENT_MODIFICATION "MILLRACE_SOURCE=set:${PROJECT_SOURCE_DIR}")
endfunction()

# millrace_program(NAME SOURCES ... [SHIPPED] DEPS module ... LIBS ... [PRECOMPILED target]): a program in
# ${CMAKE_BINARY_DIR}/bin. SHIPPED: users get it. The target `programs` builds all of these, `helper_programs` the others,
# which are of tests and benchmarks.
add_custom_target(programs)
add_custom_target(helper_programs)
function(millrace_program name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "SHIPPED" "PRECOMPILED" "SOURCES;DEPS;LIBS")
  add_executable(${name} ${arg_SOURCES})
  list(TRANSFORM arg_DEPS PREPEND millrace::)
  target_link_libraries(${name} PRIVATE ${arg_DEPS} ${arg_LIBS})
  millrace_align_thread_locals(${name})
  target_compile_definitions(${name} PRIVATE MILLRACE_VERSION="${PROJECT_VERSION}")
  if(NOT arg_PRECOMPILED)
    set(arg_PRECOMPILED millrace_waiting_precompiled)
    target_compile_options(${name} PRIVATE ${MILLRACE_WAITING_OPTIONS})
  endif()
  target_precompile_headers(${name} REUSE_FROM ${arg_PRECOMPILED})
  set_target_properties(${name} PROPERTIES UNITY_BUILD_BATCH_SIZE 24)  # commands may have functions of one name
  if(arg_SHIPPED)
    add_dependencies(programs ${name})
  else()
    add_dependencies(helper_programs ${name})
  endif()
endfunction()
