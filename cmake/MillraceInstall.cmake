# `cmake --install build/release --prefix /usr` installs everything; `make package` makes a Debian package of each component:
#
#   programs  millrace       the command, the helper that mount(8) looks for, units, completions, man pages
#   engine    millrace-engine    `millrace train`, `millrace serve` and `millrace eval`, which need libtorch
#   csi       millrace-csi       the CSI driver for Kubernetes, if gRPC was found
#   arrow     millrace-arrow     the plug-in for Arrow and Parquet, if Arrow was found
#   python    python3-millrace   the Python package for the distribution's Python
#   libraries    libmillrace     the shared libraries of C++ programs (MillraceLibraries.cmake)
#   development  millrace-dev    what such programs are built with: headers, and what CMake and pkg-config read
install(TARGETS millrace RUNTIME COMPONENT programs)
foreach(program IN ITEMS millrace-train millrace-serve millrace-eval)
  if(TARGET ${program})
    install(TARGETS ${program} RUNTIME COMPONENT engine)
  endif()
endforeach()
if(TARGET millrace-csi)
  install(TARGETS millrace-csi RUNTIME COMPONENT csi)
endif()
install(FILES LICENSE README.md DESTINATION ${CMAKE_INSTALL_DOCDIR} COMPONENT programs)
# Programs that slurm.conf names; the unit millrace-node-check runs one of them.
install(PROGRAMS deploy/slurm/prolog deploy/slurm/epilog deploy/slurm/task-prolog deploy/slurm/node-check
  DESTINATION lib/millrace/slurm COMPONENT programs)
install(CODE "set(source \"${PROJECT_SOURCE_DIR}\")
  set(built \"${CMAKE_RUNTIME_OUTPUT_DIRECTORY}\")" COMPONENT programs)
install(CODE [[
  set(root "$ENV{DESTDIR}${CMAKE_INSTALL_PREFIX}")
  file(MAKE_DIRECTORY "${root}/sbin")
  file(CREATE_LINK ../bin/millrace "${root}/sbin/mount.millrace" SYMBOLIC)
  foreach(unit IN ITEMS millrace@.service millrace-check@.service millrace-check@.timer
                        millrace-node-check.service millrace-node-check.timer)
    file(READ "${source}/packaging/systemd/${unit}" text)
    string(REPLACE /usr/bin/millrace "${CMAKE_INSTALL_PREFIX}/bin/millrace" text "${text}")
    string(REPLACE /usr/lib/millrace "${CMAKE_INSTALL_PREFIX}/lib/millrace" text "${text}")
    file(WRITE "${root}/lib/systemd/system/${unit}" "${text}")
  endforeach()
  foreach(completion IN ITEMS bash:bash-completion/completions/millrace zsh:zsh/vendor-completions/_millrace
                              fish:fish/vendor_completions.d/millrace.fish)
    string(REPLACE ":" ";" completion "${completion}")
    list(GET completion 0 shell)
    list(GET completion 1 path)
    execute_process(COMMAND "${root}/bin/millrace" completion ${shell} OUTPUT_VARIABLE text COMMAND_ERROR_IS_FATAL ANY)
    file(WRITE "${root}/share/${path}" "${text}")
  endforeach()
  execute_process(COMMAND "${root}/bin/millrace" job schema OUTPUT_VARIABLE text COMMAND_ERROR_IS_FATAL ANY)
  file(WRITE "${root}/share/millrace/job.schema.json" "${text}")
  # The programs where they were built make the pages: `train` and `serve` may be in another package.
  execute_process(COMMAND "${source}/tools/man_pages.py" "${built}/millrace" "${root}/share/man/man1"
    COMMAND_ERROR_IS_FATAL ANY)
  message(STATUS "Installed: sbin/mount.millrace, units of systemd, completions, the schema of job files and man pages under ${root}")
]] COMPONENT programs)

# The extension module belongs to the distribution's Python; pip installs another copy for any other (pyproject.toml).
if(TARGET millrace_python AND NOT SKBUILD)
  set(python_folder lib/python3/dist-packages)
  install(DIRECTORY python/millrace DESTINATION ${python_folder} COMPONENT python EXCLUDE_FROM_ALL
    PATTERN __pycache__ EXCLUDE)
  install(TARGETS millrace_python LIBRARY DESTINATION ${python_folder}/millrace COMPONENT python EXCLUDE_FROM_ALL)
  install(CODE "set(version \"${PROJECT_VERSION}\")" COMPONENT python EXCLUDE_FROM_ALL)
  install(CODE [[
    file(WRITE "$ENV{DESTDIR}${CMAKE_INSTALL_PREFIX}/lib/python3/dist-packages/millrace-${version}.dist-info/METADATA"
      "Metadata-Version: 2.1\nName: millrace\nVersion: ${version}\n")
    file(WRITE "$ENV{DESTDIR}${CMAKE_INSTALL_PREFIX}/lib/python3/dist-packages/millrace-${version}.dist-info/entry_points.txt"
      "[fsspec.specs]\nmillrace = millrace.filesystem:MillraceFileSystem\n")
  ]] COMPONENT python EXCLUDE_FROM_ALL)
endif()

set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_VENDOR Millrace)
set(CPACK_PACKAGE_CONTACT "The Millrace developers <millrace@localhost>")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY ${PROJECT_DESCRIPTION})
set(CPACK_RESOURCE_FILE_LICENSE ${PROJECT_SOURCE_DIR}/LICENSE)
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES OFF)  # CPack would strip before the debug symbols are extracted
set(CPACK_COMPONENTS_GROUPING IGNORE)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_SECTION utils)
# Debug symbols are moved into packages of their own, millrace-dbgsym and so on.
set(CPACK_DEBIAN_DEBUGINFO_PACKAGE ON)

set(CPACK_DEBIAN_PROGRAMS_PACKAGE_NAME millrace)
set(CPACK_DEBIAN_PROGRAMS_PACKAGE_DEPENDS fuse3)
set(CPACK_DEBIAN_PROGRAMS_PACKAGE_RECOMMENDS ca-certificates)
set(CPACK_DEBIAN_PROGRAMS_PACKAGE_SUGGESTS "millrace-engine, python3-millrace")
set(CPACK_COMPONENT_PROGRAMS_DESCRIPTION "Buckets as files, transfers, data sets, checkpoints and jobs.")
set(CPACK_DEBIAN_ENGINE_PACKAGE_NAME millrace-engine)
set(CPACK_DEBIAN_ENGINE_PACKAGE_DEPENDS "millrace (= ${PROJECT_VERSION})")
set(CPACK_COMPONENT_ENGINE_DESCRIPTION "Training and serving of language models for millrace.")
set(CPACK_DEBIAN_CSI_PACKAGE_NAME millrace-csi)
set(CPACK_DEBIAN_CSI_PACKAGE_DEPENDS "millrace (= ${PROJECT_VERSION})")
set(CPACK_COMPONENT_CSI_DESCRIPTION "Volumes of Kubernetes in buckets: the CSI driver of millrace.")
set(CPACK_DEBIAN_ARROW_PACKAGE_NAME millrace-arrow)
set(CPACK_DEBIAN_ARROW_PACKAGE_DEPENDS "millrace (= ${PROJECT_VERSION})")
set(CPACK_COMPONENT_ARROW_DESCRIPTION "Reading of Arrow and Parquet for millrace.")
set(CPACK_DEBIAN_PYTHON_PACKAGE_NAME python3-millrace)
set(CPACK_DEBIAN_PYTHON_PACKAGE_SECTION python)
set(CPACK_DEBIAN_PYTHON_PACKAGE_DEPENDS "python3-numpy")
set(CPACK_COMPONENT_PYTHON_DESCRIPTION "Data sets, tokenizers, files and checkpoints of millrace for Python.")
# The name has no version, so that an update replaces the libraries: only the packages' own versions fit each other.
set(CPACK_DEBIAN_LIBRARIES_PACKAGE_NAME libmillrace)
set(CPACK_DEBIAN_LIBRARIES_PACKAGE_SECTION libs)
set(CPACK_DEBIAN_LIBRARIES_PACKAGE_RECOMMENDS ca-certificates)
set(CPACK_COMPONENT_LIBRARIES_DESCRIPTION "Object stores, token batches and checkpoints for C++ programs.")
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_NAME millrace-dev)
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_SECTION libdevel)
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_DEPENDS "libmillrace (= ${PROJECT_VERSION})")
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_SUGGESTS "cmake, g++")
set(CPACK_COMPONENT_DEVELOPMENT_DESCRIPTION "Headers of libmillrace, for programs in C++23.")
set(CPACK_COMPONENTS_ALL programs)
if(MILLRACE_ENGINE)
  list(APPEND CPACK_COMPONENTS_ALL engine)
endif()
if(TARGET millrace-csi)
  list(APPEND CPACK_COMPONENTS_ALL csi)
endif()
if(TARGET millrace_arrow)
  list(APPEND CPACK_COMPONENTS_ALL arrow)
endif()
if(TARGET millrace_storage_library)
  list(APPEND CPACK_COMPONENTS_ALL libraries development)
endif()
if(TARGET millrace_python)
  list(APPEND CPACK_COMPONENTS_ALL python)
endif()
if(NOT SKBUILD)
  include(CPack)
endif()
