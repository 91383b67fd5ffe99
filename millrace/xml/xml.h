// The XML that S3 speaks: small documents, written by hand here, read through document.h. Client and endpoint share it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace millrace::xml {

inline constexpr std::string_view kS3Namespace = "http://s3.amazonaws.com/doc/2006-03-01/";

/// Appends `text` so that an XML reader gets exactly it back: markup, line ends and control characters are escaped.
void AppendEscaped(std::string_view text, std::string& out);
/// Can the text be written in XML 1.0? Some control characters cannot, although S3 sends them as references.
bool Fits(std::string_view text);
/// An ETag without the quotes around it.
std::string Unquote(std::string_view etag);

/// Writes a document element by element. One thread.
class Writer {
 public:
  explicit Writer(std::string_view root, std::string_view name_space = kS3Namespace);
  Writer& Open(std::string_view name);
  Writer& Close(std::string_view name);
  Writer& Text(std::string_view name, std::string_view value);
  Writer& Number(std::string_view name, std::uint64_t value);
  Writer& Bool(std::string_view name, bool value) { return Text(name, value ? "true" : "false"); }
  /// Closes the root element and gives the document away.
  std::string Finish();

 private:
  std::string root_, out_;
};

}  // namespace millrace::xml
