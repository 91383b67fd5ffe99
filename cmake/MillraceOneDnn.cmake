# Finds oneDNN and gives the target millrace_onednn. The distribution's own CMake configuration is not used: it asks for
# OpenCL, which products on a CPU do not need.
find_path(MILLRACE_ONEDNN_INCLUDE oneapi/dnnl/dnnl.h REQUIRED)
find_library(MILLRACE_LIB_onednn NAMES dnnl REQUIRED)
add_library(millrace_onednn INTERFACE)
target_include_directories(millrace_onednn SYSTEM INTERFACE ${MILLRACE_ONEDNN_INCLUDE})
target_link_libraries(millrace_onednn INTERFACE ${MILLRACE_LIB_onednn})
