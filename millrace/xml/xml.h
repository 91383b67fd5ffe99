// Writes the small XML documents of S3. document.h reads them. The client and the embedded endpoint share both.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace millrace::xml {

inline constexpr std::string_view kS3Namespace = "http://s3.amazonaws.com/doc/2006-03-01/";

/// Appends `text` with markup, line ends and control characters escaped, so that an XML reader gets exactly `text`.
void AppendEscaped(std::string_view text, std::string& out);
/// Returns whether XML 1.0 can represent the text. It cannot represent some control characters, although S3 sends them
/// as references.
bool Fits(std::string_view text);
/// Removes the quotes around an ETag.
std::string Unquote(std::string_view etag);

/// Writes a document element by element. Not thread-safe.
class Writer {
 public:
  explicit Writer(std::string_view root, std::string_view name_space = kS3Namespace);
  /// Begins and ends an element that contains elements.
  Writer& Open(std::string_view name);
  Writer& Close(std::string_view name);
  /// An element that contains a value.
  Writer& Text(std::string_view name, std::string_view value);
  Writer& Number(std::string_view name, std::uint64_t value);
  Writer& Bool(std::string_view name, bool value) { return Text(name, value ? "true" : "false"); }
  /// Closes the root element and returns the document. Call it once, last.
  std::string Finish();

 private:
  std::string root_, out_;
};

}  // namespace millrace::xml
