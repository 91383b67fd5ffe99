// Reads server-sent events (WHATWG HTML, 9.2) from bytes that arrive in pieces.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

#include "millrace/base/bytes.h"
#include "millrace/base/result.h"

namespace millrace::serve {

/// Collects the bytes of a stream and gives the data of its events. Comments and other fields are skipped. Not
/// thread-safe.
class EventStream {
 public:
  /// The longest event: a text of the longest answer fits many times.
  static constexpr std::size_t kMaxEventBytes = 16 * kMiB;

  void Add(std::string_view bytes) { unread_ += bytes; }
  /// Returns the data of the next whole event; nothing if more bytes are needed.
  /// Errors: kCorrupt if an event is longer than kMaxEventBytes.
  Result<std::optional<std::string>> Next();

 private:
  std::string unread_;
  std::size_t read_ = 0;  ///< bytes of unread_ that are done with
  std::string data_;
  bool has_data_ = false;
};

}  // namespace millrace::serve
