// The answers of S3 and of the token service, as a hostile or broken server could send them.
#include <cstddef>
#include <cstdint>
#include <cstdlib>

#include "millrace/object/s3/protocol/xml.h"
#include "millrace/xml/xml.h"

namespace s3 = millrace::object::s3;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  std::string_view body(reinterpret_cast<const char*>(data), size);
  if (auto page = s3::ParseListPage(body)) {
    // Whatever was read can be written, unless XML has no way to.
    std::vector<millrace::object::VersionName> names;
    for (const auto& object : page->objects) {
      if (millrace::xml::Fits(object.key)) names.push_back({.key = object.key, .id = ""});
    }
    if (s3::DeleteDocument(names).empty()) std::abort();
  }
  (void)s3::ParseVersionsPage(body);
  (void)s3::ParseTags(body);
  (void)s3::ParseErrorDocument(body);
  (void)s3::IsErrorDocument(body);
  (void)s3::ParseUploadId(body);
  (void)s3::ParseWritten(body);
  (void)s3::ParseBuckets(body);
  (void)s3::ParseDeleteErrors(body);
  (void)s3::ParseRoleCredentials(body);
  (void)s3::ParseUploadsPage(body);
  if (auto page = s3::ParsePartsPage(body); page && s3::CompleteDocument(page->parts).empty()) std::abort();
  return 0;
}
