// Encodes conversations for scripts, as `layout: auto` does.
//
//   conversation_tokens FOLDER
//
// FOLDER has a tokenizer.json and the files beside it that say how the model writes conversations. Reads a record a
// line, and answers each with {"ids": […], "trained": [[begin, end], …]} or {"broken": reason, "why": …}. If the
// folder's template cannot be used, the first line is {"error": …}; otherwise it is {}.
#include <iostream>
#include <string>

#include "millrace/base/files/files.h"
#include "millrace/base/json.h"
#include "millrace/data/documents/document_encoder.h"
#include "millrace/data/records/broken_reason.h"
#include "millrace/tokenizer/formats/declared_tokens.h"
#include "millrace/tokenizer/formats/load.h"

namespace millrace::data {
namespace {

Result<std::shared_ptr<const tokenizer::Tokenizer>> Open(const std::string& folder) {
  const auto read = [&](std::string_view file) -> Result<std::optional<std::string>> {
    auto text = ReadFile(fmt::format("{}/{}", folder, file));
    if (!text && text.error().code() == Code::kNotFound) return std::optional<std::string>();
    if (!text) return Fail(text.error());
    return std::optional(*std::move(text));
  };
  const std::string file = folder + "/tokenizer.json";
  auto loaded = MR_TRY(tokenizer::Load(AsBytes(MR_TRY(ReadFile(file))), file));
  const auto declared = MR_TRY(tokenizer::ReadDeclaredTokens(read, folder));
  return tokenizer::WithDeclaredTokens(std::move(loaded), declared, {});
}

Status Answer(const std::string& folder) {
  const auto tokenizer = MR_TRY(Open(folder));
  const DocumentForm form = MR_TRY(
      DocumentForm::Make({.sequence_length = 1 << 20, .mode = SequenceMode::kSft, .layout = "auto"}, tokenizer.get()));
  std::cout << "{}" << std::endl;
  DocumentEncoder encoder(form, tokenizer.get());
  EncodedDocument document;
  for (std::string line; std::getline(std::cin, line);) {
    const auto broken = MR_TRY(encoder.Encode(line, document));
    Json answer{{"ids", document.ids}, {"trained", Json::array()}};
    for (const TokenRange range : document.trained) answer["trained"].push_back({range.begin, range.end});
    if (broken) answer = {{"broken", BrokenReasonName(*broken)}, {"why", encoder.template_refusal()}};
    std::cout << DumpJson(answer) << std::endl;
  }
  return {};
}

}  // namespace
}  // namespace millrace::data

int main(int, char** argv) {
  const auto answered = millrace::data::Answer(argv[1]);
  if (!answered) std::cout << millrace::DumpJson({{"error", answered.error().ToString()}}) << std::endl;
  return 0;
}
