// Request heads and chunk lines from the network: an error, or a head without the parts of a request smuggling attack.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "millrace/http/server/request_head.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  std::string_view text(reinterpret_cast<const char*>(data), size);
  (void)millrace::http::ParseChunkSize(text);
  (void)millrace::http::IsFieldLine(text);
  auto head = millrace::http::ParseRequestHead(text);
  if (!head) return 0;
  // Request smuggling needs both framings at once, or a line break within a header.
  if (head->chunked && head->content_length) std::abort();
  for (const auto& [name, value] : head->headers) {
    if (value.find_first_of("\r\n") != std::string_view::npos ||
        name.find_first_of(" \t\r\n:") != std::string_view::npos) {
      std::abort();
    }
  }
  if (!head->target.starts_with('/') && head->target != "*") std::abort();
  return 0;
}
