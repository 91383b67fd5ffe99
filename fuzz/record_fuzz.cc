// A template and a record, separated by the first newline: never more than an error, and a document is always UTF-8.
#include <cstdlib>
#include <string_view>

#include "millrace/base/text.h"
#include "millrace/data/records/record_template.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace millrace;
  using namespace millrace::data;
  std::string_view input(reinterpret_cast<const char*>(data), size);
  std::string_view form = input.substr(0, input.find('\n'));
  auto record_template = RecordTemplate::Parse(IsValidUtf8(form) ? form : "{text}");
  if (!record_template) return 0;
  RecordParser parser(*record_template);
  auto document = parser.Parse(input.substr(std::min(form.size() + 1, input.size())));
  if (document && !IsValidUtf8(*document)) std::abort();
  return 0;
}
