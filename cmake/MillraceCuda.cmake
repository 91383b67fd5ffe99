# Kernels for NVIDIA GPUs. They are built if the PyTorch that TORCH_ROOT names has CUDA and an nvcc is found: of the
# system, or of PyPI's nvidia-cuda-nvcc beside that PyTorch. Sets MILLRACE_CUDA, and gives the target millrace_cuda (headers
# and libraries) and the function millrace_cuda_sources.
set(MILLRACE_CUDA_TARGETS "80;90a;100" CACHE STRING "Compute capabilities that kernels are compiled for")
set(MILLRACE_CUDA OFF)
if(NOT MILLRACE_LIB_torch_cuda OR NOT MILLRACE_LIB_c10_cuda)
  return()
endif()
file(GLOB wheels ${TORCH_ROOT}/../nvidia/cu1*)
find_program(MILLRACE_NVCC nvcc HINTS ${wheels} /usr/local/cuda ENV CUDA_HOME PATH_SUFFIXES bin)
if(NOT MILLRACE_NVCC)
  message(STATUS "no nvcc: without the kernels for GPUs. tools/gpu says how to install it")
  return()
endif()
get_filename_component(nvcc_root ${MILLRACE_NVCC} DIRECTORY)
get_filename_component(nvcc_root ${nvcc_root} DIRECTORY)
find_path(MILLRACE_CUDA_INCLUDE cuda_runtime_api.h HINTS ${wheels} ${nvcc_root} PATH_SUFFIXES include REQUIRED)
find_library(MILLRACE_LIB_cublas NAMES cublas libcublas.so.13 libcublas.so.12 HINTS ${wheels} ${nvcc_root}
  PATH_SUFFIXES lib lib64 REQUIRED)
find_library(MILLRACE_LIB_cublaslt NAMES cublasLt libcublasLt.so.13 libcublasLt.so.12 HINTS ${wheels} ${nvcc_root}
  PATH_SUFFIXES lib lib64 REQUIRED)
find_library(MILLRACE_LIB_cudart NAMES cudart libcudart.so.13 libcudart.so.12 HINTS ${wheels} ${nvcc_root}
  PATH_SUFFIXES lib lib64 REQUIRED)
set(MILLRACE_CUDA ON)
add_library(millrace_cuda INTERFACE)
target_include_directories(millrace_cuda SYSTEM INTERFACE ${MILLRACE_CUDA_INCLUDE})
target_link_libraries(millrace_cuda INTERFACE ${MILLRACE_LIB_cublas} ${MILLRACE_LIB_cublaslt} ${MILLRACE_LIB_cudart})
target_compile_definitions(millrace_cuda INTERFACE MILLRACE_CUDA)

# millrace_cuda_sources(TARGET a.cu ...): compiles kernels with nvcc and adds them to a target. CMake's own CUDA language
# is not used: it looks for libraries where PyPI's packages have none.
function(millrace_cuda_sources target)
  set(codes)
  foreach(capability ${MILLRACE_CUDA_TARGETS})
    list(APPEND codes -gencode=arch=compute_${capability},code=sm_${capability})
  endforeach()
  set(launcher)
  if(CCACHE_PROGRAM)
    set(launcher ${CMAKE_COMMAND} -E env CCACHE_BASEDIR=${PROJECT_SOURCE_DIR} CCACHE_NOHASHDIR=1 ${CCACHE_PROGRAM})
  endif()
  foreach(source ${ARGN})
    set(object ${CMAKE_CURRENT_BINARY_DIR}/${source}.o)
    get_filename_component(folder ${object} DIRECTORY)
    file(MAKE_DIRECTORY ${folder})
    add_custom_command(OUTPUT ${object} DEPFILE ${object}.d DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/${source}
      COMMAND ${launcher} ${MILLRACE_NVCC} -std=c++20 --expt-relaxed-constexpr -O3 -lineinfo ${codes} -ccbin ${CMAKE_CXX_COMPILER}
        -Xcompiler=-fPIC,-Wall -I${PROJECT_SOURCE_DIR} -I${MILLRACE_CUDA_INCLUDE} -MD -MF ${object}.d
        -c ${CMAKE_CURRENT_SOURCE_DIR}/${source} -o ${object}
      COMMENT "Compiling ${source} for GPUs" VERBATIM)
    target_sources(${target} PRIVATE ${object})
    set_source_files_properties(${object} PROPERTIES EXTERNAL_OBJECT ON GENERATED ON)
  endforeach()
endfunction()
