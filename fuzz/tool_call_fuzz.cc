// Any answer in any pieces has the same words and calls.
#include <cstdlib>
#include <string>
#include <string_view>

#include "millrace/serve/calls/call_reader.h"

namespace {

/// Returns words and calls without their ids, which are random.
std::string Read(millrace::serve::ToolSyntax syntax, std::string_view text, std::size_t piece) {
  using millrace::serve::AnswerParts;
  millrace::serve::ToolCallParser reader(syntax, {"f", "g"});
  std::string words, calls;
  const auto take = [&](const AnswerParts& parts) {
    words += parts.text;
    for (const auto& part : parts.calls) {
      if (!part.id.empty()) calls += "\n" + part.name + ":";
      calls += part.arguments;
    }
  };
  for (std::size_t at = 0; at < text.size(); at += piece) take(reader.Add(text.substr(at, piece)));
  take(reader.Finish());
  return words + calls;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using millrace::serve::ToolSyntax;
  if (size < 1) return 0;
  const std::string_view text(reinterpret_cast<const char*>(data + 1), size - 1);
  for (const ToolSyntax syntax : {ToolSyntax::kHermes, ToolSyntax::kLlama3, ToolSyntax::kMistral}) {
    if (Read(syntax, text, 1 + data[0] % 16) != Read(syntax, text, size)) std::abort();
  }
  return 0;
}
