#include "millrace/tokenizer/formats/byte_pair_files.h"

#include <array>
#include <map>

#include "millrace/base/text.h"
#include "millrace/tokenizer/formats/declared_tokens.h"
#include "millrace/tokenizer/huggingface/hf_file.h"

namespace millrace::tokenizer {
namespace {

constexpr std::string_view kEndOfText = "<|endoftext|>";
constexpr std::string_view kQwen2Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

/// Returns the name of the class without "Fast". Empty: the configuration names none.
std::string ClassOf(const Json& config) {
  std::string name = JsonString(config, "tokenizer_class").value_or("");
  if (name.ends_with("Fast")) name.resize(name.size() - 4);
  return name;
}

bool Flag(const Json& config, const char* key) {
  const Json* value = JsonFind(config, key);
  return value != nullptr && value->is_boolean() && value->get<bool>();
}

/// Returns the special tokens by their ids.
std::map<TokenId, std::string> SpecialsOf(const hf::Json& vocab, const Json& config, std::string_view of_class) {
  std::map<TokenId, std::string> specials;
  const auto add = [&](const std::string& token) {
    const auto known = vocab.find(token);
    if (!token.empty() && known != vocab.end()) specials.emplace(known->get<TokenId>(), token);
  };
  for (const char* key : {"bos_token", "eos_token", "unk_token", "pad_token", "cls_token", "sep_token", "mask_token"}) {
    const Json* said = JsonFind(config, key);
    if (said != nullptr) add(SpecialTokenText(*said));
  }
  if (of_class.empty() || of_class == "GPT2Tokenizer" || of_class == "Qwen2Tokenizer") add(std::string(kEndOfText));
  return specials;
}

}  // namespace

Result<std::string> MakeTokenizerJson(const BytePairFiles& files) {
  constexpr std::array<std::string_view, 5> kClasses = {"", "GPT2Tokenizer", "RobertaTokenizer", "BartTokenizer",
                                                        "Qwen2Tokenizer"};
  const std::string of_class = ClassOf(files.config);
  if (std::ranges::find(kClasses, of_class) == kClasses.end()) {
    return Fail(Code::kUnsupported,
                "vocab.json and merges.txt of a {} are not supported; save the tokenizer as "
                "tokenizer.json with transformers",
                of_class);
  }
  const hf::Json vocab = hf::Json::parse(files.vocab, nullptr, false);
  const bool is_map = vocab.is_object() && std::ranges::all_of(vocab, [](const hf::Json& id) {
                        return id.is_number_unsigned() && id.get<std::uint64_t>() < hf::kMaxVocabulary;
                      });
  if (!is_map) {
    return Fail(
        Code::kInvalidArgument,
        "vocab.json is no object that has a number for each token; expected tokens with their ids, as in GPT-2's");
  }

  hf::Json merges = hf::Json::array();
  for (std::string_view line : Split(files.merges, '\n')) {
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (!line.empty() && !line.starts_with("#version")) merges.push_back(line);
  }
  hf::Json added = hf::Json::array();
  for (const auto& [id, token] : SpecialsOf(vocab, files.config, of_class)) {
    added.push_back({{"id", id}, {"content", token}, {"special", true}});
  }
  const bool is_qwen = of_class == "Qwen2Tokenizer";
  const hf::Json bytes = {{"type", "ByteLevel"},
                          {"add_prefix_space", !is_qwen && Flag(files.config, "add_prefix_space")},
                          {"trim_offsets", false},
                          {"use_regex", !is_qwen}};
  hf::Json words = bytes;
  if (is_qwen) {
    const hf::Json split = {
        {"type", "Split"}, {"pattern", {{"Regex", kQwen2Pattern}}}, {"behavior", "Isolated"}, {"invert", false}};
    words = {{"type", "Sequence"}, {"pretokenizers", {split, bytes}}};
  }
  hf::Json json = {{"added_tokens", std::move(added)},
                   {"pre_tokenizer", std::move(words)},
                   {"decoder", bytes},
                   {"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", std::move(merges)}}}};
  if (is_qwen) json["normalizer"] = {{"type", "NFC"}};
  return json.dump(-1, ' ', false, hf::Json::error_handler_t::replace);
}

}  // namespace millrace::tokenizer
