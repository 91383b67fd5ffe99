#include "millrace/engine/errors.h"

namespace millrace::engine {
namespace {

/// Returns what lies between the two texts; empty if one of them is not there.
std::string_view Between(std::string_view text, std::string_view before, std::string_view behind) {
  const std::size_t begin = text.find(before);
  if (begin == text.npos) return {};
  text.remove_prefix(begin + before.size());
  const std::size_t end = text.find(behind);
  return end == text.npos ? std::string_view() : text.substr(0, end);
}

}  // namespace

// "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.1 GiB of which 1.2 GiB is free.
// ..."
Error OutOfDeviceMemory(std::string_view what, std::string_view text) {
  const std::string_view wanted = Between(text, "Tried to allocate ", ". ");
  const std::string_view total = Between(text, "has a total capacity of ", " of which ");
  const std::string_view free = Between(text, " of which ", " is free");
  if (wanted.empty() || total.empty() || free.empty()) {
    return {Code::kResourceExhausted, fmt::format("{}: {}", what, text.substr(0, text.find('\n')))};
  }
  return {Code::kResourceExhausted,
          fmt::format("{}: out of GPU memory: {} were asked for, {} of {} are free", what, wanted, free, total)};
}

}  // namespace millrace::engine
