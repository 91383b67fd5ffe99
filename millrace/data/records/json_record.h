// Parses the bytes of a record as a JSON object. Includes simdjson, which is heavy: only for .cc files.
#pragma once

#include <simdjson.h>

#include <expected>
#include <string>
#include <string_view>

#include "millrace/base/bytes.h"
#include "millrace/data/records/record_template.h"

namespace millrace::data {

/// Accepts exactly what Python's json.loads accepts, with the same meaning. Keeps its buffers between calls. One thread
/// at a time; does not block.
class JsonRecordParser {
 public:
  /// Returns the object, valid until the next call, or kTooLong, kNotUtf8 or kNotJson. Ignores a byte order mark at the
  /// start. RewriteForParser (python_json.h) defines what happens to values that simdjson cannot represent.
  std::expected<simdjson::dom::object, BrokenReason> Parse(std::string_view record);

 private:
  simdjson::error_code Read(std::string_view json, simdjson::dom::element& root);

  simdjson::dom::parser parser_{2 * kMaxRecordBytes + simdjson::SIMDJSON_PADDING};
  Buffer padded_;
};

/// Finds the last member of that name, which is the one that Python keeps. Returns false if there is none.
bool FindLast(simdjson::dom::object object, std::string_view name, simdjson::dom::element& value);

/// Finds the member that a template names: the last one of that name, or, for "body.text", the member "text" of the
/// object "body". A member whose own name has the dot comes first. Returns false if there is none.
bool FindField(simdjson::dom::object object, std::string_view name, simdjson::dom::element& value);

/// Appends the text of a string, or a number or truth value as Python's str() prints it. Returns false for other
/// values.
bool AppendPythonText(simdjson::dom::element value, std::string& out);

}  // namespace millrace::data
