# Finds libtorch: the distribution's (Debian's libtorch-dev), or a pip-installed PyTorch named by -DTORCH_ROOT=…/site-packages/torch.
# Gives the target millrace_torch. Torch's own TorchConfig.cmake is not used: the distribution's pins C++14.
set(TORCH_ROOT "" CACHE PATH "Folder of a PyTorch with include/ and lib/; empty: the distribution's libtorch")

find_path(MILLRACE_TORCH_INCLUDE ATen/ATen.h HINTS ${TORCH_ROOT}/include REQUIRED)
foreach(library torch torch_cpu c10)
  find_library(MILLRACE_LIB_${library} ${library} HINTS ${TORCH_ROOT}/lib REQUIRED)
endforeach()
if(TORCH_ROOT AND EXISTS ${TORCH_ROOT}/lib/libgomp.so.1)
  # A process has one OpenMP runtime: the one that PyTorch brings.
  set(OpenMP_gomp_LIBRARY ${TORCH_ROOT}/lib/libgomp.so.1 CACHE FILEPATH "OpenMP's runtime")
endif()
find_package(OpenMP REQUIRED COMPONENTS CXX)

# PyPI's PyTorch brings headers of fmt, oneDNN and others that are not the distribution's libraries. Those stay out.
if(TORCH_ROOT)
  set(chosen ${CMAKE_BINARY_DIR}/torch_include)
  file(MAKE_DIRECTORY ${chosen})
  foreach(folder ATen c10 torch caffe2)
    file(CREATE_LINK ${MILLRACE_TORCH_INCLUDE}/${folder} ${chosen}/${folder} SYMBOLIC)
  endforeach()
  set(MILLRACE_TORCH_INCLUDE ${chosen})
endif()

add_library(millrace_torch INTERFACE)
target_include_directories(millrace_torch SYSTEM INTERFACE
  ${MILLRACE_TORCH_INCLUDE} ${MILLRACE_TORCH_INCLUDE}/torch/csrc/api/include)
if(CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
  target_compile_options(millrace_torch INTERFACE -include ${PROJECT_SOURCE_DIR}/cmake/clang_libtorch.h)
endif()
target_link_libraries(millrace_torch INTERFACE
  -Wl,--no-as-needed ${MILLRACE_LIB_torch} ${MILLRACE_LIB_torch_cpu} ${MILLRACE_LIB_c10} OpenMP::OpenMP_CXX)

# Debian installs OpenBLAS once per threading library and prefers pthreads. Torch runs its own loops on OpenMP, and two
# pools of threads on the same cores fight; a program that names the OpenMP flavour itself gets it, whatever is preferred.
find_library(MILLRACE_LIB_openblas_openmp NAMES openblas libopenblas.so.0
  PATHS /usr/lib/${CMAKE_LIBRARY_ARCHITECTURE}/openblas-openmp NO_DEFAULT_PATH)
find_library(MILLRACE_LIB_blas_openmp NAMES blas libblas.so.3
  PATHS /usr/lib/${CMAKE_LIBRARY_ARCHITECTURE}/openblas-openmp NO_DEFAULT_PATH)
if(NOT TORCH_ROOT AND MILLRACE_LIB_openblas_openmp AND MILLRACE_LIB_blas_openmp)
  target_link_libraries(millrace_torch INTERFACE ${MILLRACE_LIB_openblas_openmp} ${MILLRACE_LIB_blas_openmp})
endif()

# CUDA comes with the PyTorch that TORCH_ROOT names.
find_library(MILLRACE_LIB_torch_cuda torch_cuda HINTS ${TORCH_ROOT}/lib)
find_library(MILLRACE_LIB_c10_cuda c10_cuda HINTS ${TORCH_ROOT}/lib)
if(MILLRACE_LIB_torch_cuda AND MILLRACE_LIB_c10_cuda)
  target_link_libraries(millrace_torch INTERFACE ${MILLRACE_LIB_torch_cuda} ${MILLRACE_LIB_c10_cuda})
endif()
target_link_libraries(millrace_torch INTERFACE -Wl,--as-needed)

if(MILLRACE_TESTS)
  add_executable(millrace_torch_test_precompiled EXCLUDE_FROM_ALL ${CMAKE_BINARY_DIR}/precompiled/main.cc)
  target_link_libraries(millrace_torch_test_precompiled PRIVATE millrace_torch GTest::gmock)
  target_compile_options(millrace_torch_test_precompiled PRIVATE ${MILLRACE_TEST_OPTIONS})
  target_precompile_headers(millrace_torch_test_precompiled PRIVATE <ATen/ATen.h> <gtest/gtest.h> <gmock/gmock.h>)
endif()
