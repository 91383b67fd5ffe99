// A record's bytes as a JSON object. For the sources that parse records: its header is heavy.
#pragma once

#include <simdjson.h>

#include <expected>
#include <string>
#include <string_view>

#include "millrace/base/bytes.h"
#include "millrace/data/records/record_template.h"

namespace millrace::data {

/// Reads what Python's json.loads reads, as Python understands it. Keeps its buffers between calls. One thread at a
/// time; does not block.
class JsonRecordParser {
 public:
  /// The object, valid until the next call, or why there is none: kTooLong, kNotUtf8, kNotJson. A byte order mark in
  /// front is ignored. What simdjson cannot represent is as RewriteForParser (python_json.h) says.
  std::expected<simdjson::dom::object, Broken> Parse(std::string_view record);

 private:
  simdjson::error_code Read(std::string_view json, simdjson::dom::element& root);

  simdjson::dom::parser parser_{2 * kMaxRecordBytes + simdjson::SIMDJSON_PADDING};
  Buffer padded_;
};

/// The last member of that name, which is the one that Python keeps. False if there is none.
bool FindLast(simdjson::dom::object object, std::string_view name, simdjson::dom::element& value);

/// Appends a string's text, or a number or truth value as Python's str() prints it. False for anything else.
bool AppendPythonText(simdjson::dom::element value, std::string& out);

}  // namespace millrace::data
