# Headers that most files include, parsed once per build instead of once per file: fmt, JSON and the standard library for
# modules, GoogleTest as well for tests. Modules that include libtorch share that of millrace_engine, and their tests
# that of MillraceTorch.cmake.
set(common_headers <algorithm> <chrono> <cstdint> <expected> <filesystem> <functional> <map> <memory> <mutex> <optional>
    <span> <stop_token> <string> <string_view> <thread> <vector> <fmt/format.h> <nlohmann/json.hpp>)

file(WRITE ${CMAKE_BINARY_DIR}/precompiled/empty.cc "")
file(WRITE ${CMAKE_BINARY_DIR}/precompiled/main.cc "int main() {}\n")
add_library(millrace_precompiled OBJECT ${CMAKE_BINARY_DIR}/precompiled/empty.cc)
target_link_libraries(millrace_precompiled PRIVATE fmt::fmt nlohmann_json::nlohmann_json)
target_precompile_headers(millrace_precompiled PRIVATE ${common_headers})
add_library(millrace_waiting_precompiled OBJECT ${CMAKE_BINARY_DIR}/precompiled/empty.cc)
target_link_libraries(millrace_waiting_precompiled PRIVATE fmt::fmt nlohmann_json::nlohmann_json)
target_compile_options(millrace_waiting_precompiled PRIVATE ${MILLRACE_WAITING_OPTIONS})
target_precompile_headers(millrace_waiting_precompiled PRIVATE ${common_headers})
if(MILLRACE_TESTS)
  add_executable(millrace_test_precompiled EXCLUDE_FROM_ALL ${CMAKE_BINARY_DIR}/precompiled/main.cc)
  target_link_libraries(millrace_test_precompiled PRIVATE fmt::fmt nlohmann_json::nlohmann_json GTest::gmock)
  target_compile_options(millrace_test_precompiled PRIVATE ${MILLRACE_TEST_OPTIONS})
  target_precompile_headers(millrace_test_precompiled PRIVATE ${common_headers} <gtest/gtest.h> <gmock/gmock.h>)
endif()
