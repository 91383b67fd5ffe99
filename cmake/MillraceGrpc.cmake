# Finds gRPC for C++ and protobuf's compiler. Gives the interface target millrace_grpc, the function millrace_grpc_library,
# and MILLRACE_CSI_BUILT.
set(MILLRACE_CSI AUTO CACHE STRING "Build the CSI driver (millrace csi): AUTO (where gRPC is found), ON or OFF")
set(MILLRACE_CSI_BUILT OFF)
add_custom_target(millrace_generated)  # what is written while building: tools/lint reads it
# The libraries of the distribution are not instrumented: for ThreadSanitizer their threads look like races.
if(NOT MILLRACE_CSI STREQUAL "OFF" AND NOT MILLRACE_SANITIZE MATCHES "thread")
  find_program(MILLRACE_PROTOC protoc)
  find_program(MILLRACE_GRPC_PLUGIN grpc_cpp_plugin)
  find_path(MILLRACE_GRPC_INCLUDE grpcpp/grpcpp.h)
  find_path(MILLRACE_PROTOBUF_INCLUDE google/protobuf/message_lite.h)
  find_library(MILLRACE_LIB_grpcpp grpc++)
  find_library(MILLRACE_LIB_grpc grpc)
  find_library(MILLRACE_LIB_gpr gpr)
  find_library(MILLRACE_LIB_absl_synchronization absl_synchronization)  # for inline functions of gRPC's headers
  find_library(MILLRACE_LIB_protobuf_lite protobuf-lite)
  set(missing)
  foreach(part IN ITEMS MILLRACE_PROTOC MILLRACE_GRPC_PLUGIN MILLRACE_GRPC_INCLUDE MILLRACE_PROTOBUF_INCLUDE
                        MILLRACE_LIB_grpcpp MILLRACE_LIB_grpc MILLRACE_LIB_gpr MILLRACE_LIB_absl_synchronization
                        MILLRACE_LIB_protobuf_lite)
    if(NOT ${part})
      list(APPEND missing ${part})
    endif()
  endforeach()
  if(NOT missing)
    set(MILLRACE_CSI_BUILT ON)
    message(STATUS "gRPC: found, the CSI driver is built")
  elseif(MILLRACE_CSI STREQUAL "ON")
    message(FATAL_ERROR "gRPC is not here (${missing}): install libgrpc++-dev, protobuf-compiler and protobuf-compiler-grpc")
  else()
    message(STATUS "gRPC: not found, no CSI driver (libgrpc++-dev, protobuf-compiler, protobuf-compiler-grpc)")
  endif()
endif()
if(NOT MILLRACE_CSI_BUILT)
  return()
endif()
add_library(millrace_grpc INTERFACE)
target_include_directories(millrace_grpc SYSTEM INTERFACE ${MILLRACE_GRPC_INCLUDE} ${MILLRACE_PROTOBUF_INCLUDE})
target_link_libraries(millrace_grpc INTERFACE ${MILLRACE_LIB_grpcpp} ${MILLRACE_LIB_grpc} ${MILLRACE_LIB_gpr}
  ${MILLRACE_LIB_absl_synchronization} ${MILLRACE_LIB_protobuf_lite} Threads::Threads)

# millrace_grpc_library(TARGET a.proto ...): a static library of the messages and services of these files, in one
# translation unit. Headers: "NAME.pb.h" and "NAME.grpc.pb.h".
function(millrace_grpc_library target)
  set(folder ${CMAKE_BINARY_DIR}/generated/${target})
  file(MAKE_DIRECTORY ${folder})
  set(unit "")
  set(generated)
  set(protos)
  foreach(proto ${ARGN})
    get_filename_component(name ${proto} NAME_WE)
    list(APPEND protos ${CMAKE_CURRENT_SOURCE_DIR}/${proto})
    foreach(part pb grpc.pb)
      string(APPEND unit "#include \"${name}.${part}.cc\"\n")
      list(APPEND generated ${folder}/${name}.${part}.h ${folder}/${name}.${part}.cc)
    endforeach()
  endforeach()
  get_filename_component(source_folder ${CMAKE_CURRENT_SOURCE_DIR}/${ARGV1} DIRECTORY)
  add_custom_command(OUTPUT ${generated} DEPENDS ${protos}
    COMMAND ${MILLRACE_PROTOC} -I${source_folder} --cpp_out=${folder} --grpc_out=${folder}
      --plugin=protoc-gen-grpc=${MILLRACE_GRPC_PLUGIN} ${protos}
    COMMENT "Generating the messages of ${target}" VERBATIM)
  add_custom_target(${target}_headers DEPENDS ${generated})
  add_dependencies(millrace_generated ${target}_headers)
  file(CONFIGURE OUTPUT ${folder}/unit.cc CONTENT "${unit}" @ONLY)
  set_source_files_properties(${folder}/unit.cc PROPERTIES OBJECT_DEPENDS "${generated}" SKIP_UNITY_BUILD_INCLUSION ON)
  add_library(${target} STATIC ${folder}/unit.cc)
  target_compile_options(${target} PRIVATE ${MILLRACE_WAITING_OPTIONS})
  add_dependencies(${target} ${target}_headers)
  target_include_directories(${target} SYSTEM PUBLIC ${folder})
  target_link_libraries(${target} PUBLIC millrace_grpc)
endfunction()
