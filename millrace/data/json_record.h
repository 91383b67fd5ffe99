// A record's bytes as a JSON object. For the sources that parse records: its header is heavy.
#pragma once

#include <simdjson.h>

#include <cstring>
#include <expected>
#include <string_view>

#include "millrace/base/bytes.h"
#include "millrace/data/record_template.h"

namespace millrace::data {

/// Keeps its buffers between calls. One thread at a time; does not block.
class JsonRecordParser {
 public:
  /// The object, valid until the next call, or why there is none: kTooLong, kNotUtf8, kNotJson. A byte order mark in
  /// front is ignored.
  std::expected<simdjson::dom::object, Broken> Parse(std::string_view record) {
    if (record.size() > kMaxRecordBytes) return std::unexpected(Broken::kTooLong);
    if (record.starts_with("\xEF\xBB\xBF")) record.remove_prefix(3);
    if (padded_.size() < record.size() + simdjson::SIMDJSON_PADDING) {
      padded_ = Buffer(record.size() + record.size() / 4 + simdjson::SIMDJSON_PADDING);
    }
    std::memcpy(padded_.data(), record.data(), record.size());
    std::memset(padded_.data() + record.size(), 0, simdjson::SIMDJSON_PADDING);
    simdjson::dom::element root;
    auto error = parser_.parse(reinterpret_cast<const char*>(padded_.data()), record.size(), false).get(root);
    if (error == simdjson::UTF8_ERROR) return std::unexpected(Broken::kNotUtf8);
    simdjson::dom::object object;
    if (error || root.get(object)) return std::unexpected(Broken::kNotJson);
    return object;
  }

 private:
  simdjson::dom::parser parser_{kMaxRecordBytes + simdjson::SIMDJSON_PADDING};
  Buffer padded_;
};

}  // namespace millrace::data
