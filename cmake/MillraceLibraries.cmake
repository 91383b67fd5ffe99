# The shared libraries for C++ programs of others, with their headers and what finds them. docs/guide/cpp.md shows their
# use, docs/adr/022-shared-libraries-for-cpp.md says why they are what they are.
#
#   component    library                      modules
#   storage      libmillrace_storage.so       stores, transfers, the file tree
#   checkpoint   libmillrace_checkpoint.so    reads and writes checkpoints
#   data         libmillrace_data.so          tokenizers, data sets, loaders
option(MILLRACE_LIBRARIES "Build the shared libraries for C++ programs" ON)
if(NOT MILLRACE_LIBRARIES OR SKBUILD OR MILLRACE_SANITIZE)  # a sanitizer would have to be in the program
  return()
endif()

# Within a major version, programs compile against each newer minor version. Binaries need the minor version of their build.
set(MILLRACE_SOVERSION ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR})
set(MILLRACE_COMPONENTS)

# millrace_library(COMPONENT MODULES module ... [USES component ...])
#
# Holds the modules whole. Their other modules are in the libraries of USES. No header of ours names the outside
# libraries of the modules, so programs do not link these themselves.
function(millrace_library component)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "MODULES;USES")
  set(library millrace_${component}_library)
  add_library(${library} SHARED ${CMAKE_BINARY_DIR}/precompiled/empty.cc)
  foreach(module IN LISTS arg_MODULES)
    list(APPEND archives $<TARGET_FILE:millrace_${module}>)
    get_target_property(public millrace_${module} MILLRACE_PUBLIC)
    target_sources(${library} PUBLIC FILE_SET HEADERS BASE_DIRS ${PROJECT_SOURCE_DIR} FILES ${public})
    get_target_property(libs millrace_${module} MILLRACE_LIBS)
    list(APPEND outside ${libs})
    add_dependencies(${library} millrace_${module})
  endforeach()
  # Templates of outside libraries that a module's headers use are also in the modules that include these headers.
  foreach(used IN LISTS arg_USES)
    get_target_property(libs millrace_${used}_library MILLRACE_LIBS)
    list(APPEND outside ${libs})
  endforeach()
  target_link_libraries(${library} PRIVATE ${outside})
  target_link_options(${library} PRIVATE LINKER:--as-needed
    LINKER:--whole-archive ${archives} LINKER:--no-whole-archive
    LINKER:--version-script=${PROJECT_SOURCE_DIR}/cmake/libraries.map
    LINKER:-Bsymbolic-functions LINKER:-z,defs)
  list(TRANSFORM arg_USES REPLACE "(.+)" "millrace_\\1_library" OUTPUT_VARIABLE used)
  target_link_libraries(${library} PUBLIC ${used})
  target_compile_features(${library} PUBLIC cxx_std_23)
  millrace_align_thread_locals(${library})
  set_target_properties(${library} PROPERTIES
    EXPORT_NAME ${component}
    MILLRACE_LIBS "${outside}"
    OUTPUT_NAME millrace_${component}
    VERSION ${PROJECT_VERSION}
    SOVERSION ${MILLRACE_SOVERSION}
    LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/lib
    LINK_DEPENDS "${archives};${PROJECT_SOURCE_DIR}/cmake/libraries.map"
    INSTALL_RPATH "$ORIGIN")
  set(MILLRACE_COMPONENTS ${MILLRACE_COMPONENTS} ${component} PARENT_SCOPE)
endfunction()
millrace_library(storage MODULES base http xml object object_s3 object_hf object_open cache transfer vfs)
millrace_library(checkpoint MODULES checkpoint USES storage)
millrace_library(data MODULES tokenizer tokenizer_open jinja data_options data USES checkpoint storage)

# The packages libmillrace, with what programs need to run, and millrace-dev, with what it takes to build them.
set(configuration ${CMAKE_INSTALL_LIBDIR}/cmake/Millrace)
foreach(component IN LISTS MILLRACE_COMPONENTS)
  install(TARGETS millrace_${component}_library EXPORT MillraceTargets
    LIBRARY COMPONENT libraries NAMELINK_COMPONENT development
    FILE_SET HEADERS COMPONENT development)
endforeach()
install(EXPORT MillraceTargets NAMESPACE Millrace:: DESTINATION ${configuration} COMPONENT development)
include(CMakePackageConfigHelpers)
configure_package_config_file(${CMAKE_CURRENT_LIST_DIR}/MillraceConfig.cmake.in ${CMAKE_BINARY_DIR}/MillraceConfig.cmake
  INSTALL_DESTINATION ${configuration} NO_SET_AND_CHECK_MACRO)
write_basic_package_version_file(${CMAKE_BINARY_DIR}/MillraceConfigVersion.cmake COMPATIBILITY SameMajorVersion)
install(FILES ${CMAKE_BINARY_DIR}/MillraceConfig.cmake ${CMAKE_BINARY_DIR}/MillraceConfigVersion.cmake
  DESTINATION ${configuration} COMPONENT development)

# For build systems that know pkg-config. The prefix is found from where the file is.
file(RELATIVE_PATH MILLRACE_PREFIX_FROM_PC /${CMAKE_INSTALL_LIBDIR}/pkgconfig /)
foreach(component IN LISTS MILLRACE_COMPONENTS)
  get_target_property(used millrace_${component}_library LINK_LIBRARIES)
  list(FILTER used INCLUDE REGEX "^millrace_.+_library$")
  list(TRANSFORM used REPLACE "^millrace_(.+)_library$" "millrace-\\1")
  list(JOIN used " " MILLRACE_REQUIRED)
  set(MILLRACE_COMPONENT ${component})
  configure_file(${CMAKE_CURRENT_LIST_DIR}/millrace.pc.in ${CMAKE_BINARY_DIR}/millrace-${component}.pc @ONLY)
  install(FILES ${CMAKE_BINARY_DIR}/millrace-${component}.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig
    COMPONENT development)
endforeach()
