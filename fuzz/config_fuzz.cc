// Any text is either a document, whose every node can be visited, or an error.
#include "millrace/base/config.h"

namespace {

void Visit(const millrace::config::Node& node) {
  (void)node.Where();
  (void)node.String();
  (void)node.Int(0, 100);
  for (const auto& element : node.Elements()) Visit(element);
  for (const auto& key : node.Keys()) Visit(node[key]);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  std::string_view text(reinterpret_cast<const char*>(data), size);
  auto document = millrace::config::Document::Parse(text, "fuzz.yaml");
  if (document) {
    (void)document->Set("a.b=1");
    Visit(document->Root());
  }
  return 0;
}
