# Finds Arrow and Parquet for C++: installed for CMake, or inside the wheel of pyarrow, which is its documented way
# (https://arrow.apache.org/docs/python/integration/extending.html). Gives the target millrace_arrow_libraries, or none.
set(MILLRACE_ARROW AUTO CACHE STRING "Read Arrow and Parquet: AUTO (where Arrow is found), ON or OFF")
set(MILLRACE_ARROW_PYTHON "" CACHE FILEPATH "A Python with pyarrow; empty: that of $MILLRACE_PEERS, or python3")
set(arrow_least 24)  # the first with the readers that we call

# Threads of a library that is not instrumented look like races to ThreadSanitizer.
if(NOT MILLRACE_ARROW STREQUAL "OFF" AND NOT MILLRACE_SANITIZE MATCHES "thread")
  find_package(Arrow ${arrow_least} QUIET CONFIG)
  find_package(Parquet ${arrow_least} QUIET CONFIG)
  if(Arrow_FOUND AND Parquet_FOUND AND TARGET Arrow::arrow_shared AND TARGET Parquet::parquet_shared)
    add_library(millrace_arrow_libraries INTERFACE)
    target_link_libraries(millrace_arrow_libraries INTERFACE Arrow::arrow_shared Parquet::parquet_shared)
  else()
    set(pythons ${MILLRACE_ARROW_PYTHON})
    if(NOT pythons)
      set(pythons $ENV{MILLRACE_PEERS}/venv/bin/python python3)
    endif()
    foreach(python IN LISTS pythons)
      # pip builds in an environment whose PYTHONPATH hides what is installed.
      execute_process(COMMAND ${CMAKE_COMMAND} -E env --unset=PYTHONPATH ${python} -c "import pyarrow as p; print(p.get_include(), p.get_library_dirs()[0], sep=';')"
        OUTPUT_VARIABLE folders OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE failed)
      if(failed)
        continue()
      endif()
      list(LENGTH folders length)
      if(NOT length EQUAL 2)
        continue()
      endif()
      list(GET folders 0 arrow_include)
      list(GET folders 1 arrow_folder)
      if(NOT EXISTS ${arrow_include}/arrow/util/config.h)  # a package that comes without headers
        continue()
      endif()
      file(STRINGS ${arrow_include}/arrow/util/config.h version REGEX "define ARROW_VERSION_MAJOR")
      string(REGEX MATCH "[0-9]+" version "${version}")
      # The wheel's libraries carry their version in the name, without a link that lacks it.
      file(GLOB arrow_shared ${arrow_folder}/libarrow.so.${version}00)
      file(GLOB parquet_shared ${arrow_folder}/libparquet.so.${version}00)
      if(version GREATER_EQUAL arrow_least AND arrow_shared AND parquet_shared)
        add_library(millrace_arrow_libraries INTERFACE)
        target_include_directories(millrace_arrow_libraries SYSTEM INTERFACE ${arrow_include})
        target_link_libraries(millrace_arrow_libraries INTERFACE ${parquet_shared} ${arrow_shared})
        # They are not where an installed program would look.
        set(MILLRACE_ARROW_BUNDLE ${arrow_shared} ${parquet_shared})
        break()
      endif()
    endforeach()
  endif()
  if(TARGET millrace_arrow_libraries)
    message(STATUS "Arrow: found, .arrow and .parquet can be read")
  elseif(MILLRACE_ARROW STREQUAL "ON")
    message(FATAL_ERROR "Arrow ${arrow_least} or later is not here: python3 -m pip install pyarrow, or "
      "-DMILLRACE_ARROW_PYTHON=…/bin/python")
  else()
    message(STATUS "Arrow: not found, .arrow and .parquet cannot be read (python3 -m pip install pyarrow)")
  endif()
endif()
