#include "millrace/checkpoint/convert/huggingface/hf_tokenizer.h"

#include <algorithm>

#include "millrace/checkpoint/convert/huggingface/hf_folder.h"
#include "millrace/checkpoint/convert/tensors/import_source.h"
#include "millrace/checkpoint/read/gguf_reader.h"
#include "millrace/checkpoint/read/model_source.h"
#include "millrace/object/blocking.h"

namespace millrace::checkpoint {
namespace {

/// The largest file of a tokenizer. A guess, far above real ones; the same bound as that of imports.
constexpr std::uint64_t kMaxFile = 256 * kMiB;
constexpr std::string_view kConfig = "tokenizer_config.json", kFast = "tokenizer.json",
                           kSentencePiece = "tokenizer.model", kSpecials = "special_tokens_map.json",
                           kAdded = "added_tokens.json", kTemplate = "chat_template.jinja",
                           kToolTemplate = "additional_chat_templates/tool_use.jinja";
/// All tokenizer files that transformers looks for.
constexpr std::string_view kNames[] = {kFast,   kSentencePiece, "vocab.txt", "vocab.json", "merges.txt",
                                       kConfig, kAdded,         kSpecials,   kTemplate,    kToolTemplate};

/// Returns the roles of special tokens whose names tell them, such as "<s>".
Json SpecialTokens(const Json& tokenizer) {
  Json special = Json::object();
  const Json* added = JsonFind(tokenizer, "added_tokens");
  if (added == nullptr || !added->is_array()) return special;
  constexpr std::pair<std::string_view, std::string_view> kRoles[] = {{"bos_token", "<s>"},
                                                                      {"eos_token", "</s>"},
                                                                      {"unk_token", "<unk>"},
                                                                      {"pad_token", "<pad>"},
                                                                      {"cls_token", "[CLS]"},
                                                                      {"sep_token", "[SEP]"},
                                                                      {"mask_token", "[MASK]"},
                                                                      {"pad_token", "[PAD]"},
                                                                      {"unk_token", "[UNK]"},
                                                                      {"bos_token", "<|begin_of_text|>"},
                                                                      {"eos_token", "<|end_of_text|>"},
                                                                      {"eos_token", "<|endoftext|>"}};
  for (const auto& [role, text] : kRoles) {
    for (const Json& token : *added) {
      const Json* content = JsonFind(token, "content");
      if (content != nullptr && *content == text && !special.contains(role)) special[std::string(role)] = text;
    }
  }
  return special;
}

Json FastConfig(const Json& tokenizer) {
  Json config = SpecialTokens(tokenizer);
  config["tokenizer_class"] = "PreTrainedTokenizerFast";
  config["clean_up_tokenization_spaces"] = false;
  return config;
}

/// Returns a configuration as that of Llama 2: the class LlamaTokenizer converts a SentencePiece model for the
/// tokenizers library. The tokenizer adds no bos and eos tokens, since training inserts them itself.
Json SentencePieceConfig(std::string_view model) {
  Json config{{"tokenizer_class", "LlamaTokenizer"},
              {"legacy", false},
              {"add_bos_token", false},
              {"add_eos_token", false},
              {"clean_up_tokenization_spaces", false}};
  for (const auto& [role, text] : {std::pair("bos_token", "<s>"), {"eos_token", "</s>"}, {"unk_token", "<unk>"}})
    if (model.contains(text)) config[role] = text;
  return config;
}

/// Puts the roles that special_tokens_map.json names into a tokenizer_config.json that guesses them.
Status TakeRoles(std::map<std::string, std::string>& files) {
  const auto map = files.find(std::string(kSpecials));
  if (map == files.end()) return {};
  std::string& text = files[std::string(kConfig)];
  Json config = MR_TRY(ParseJson(text, kConfig));
  config.update(MR_TRY(ParseJson(map->second, kSpecials)));
  text = DumpJsonPretty(config) + "\n";
  return {};
}

/// Adds the files beside a tokenizer's file that say more of it, if it has the name of one in a model's folder.
Status TakeSiblings(const object::Location& tokenizer, std::map<std::string, std::string>& files,
                    const object::Call& call) {
  const std::string folder = tokenizer.key.substr(0, tokenizer.key.rfind('/') + 1);
  const std::string_view name = std::string_view(tokenizer.key).substr(folder.size());
  if (name != kFast && name != kSentencePiece) return {};
  bool has_config = false;
  for (const std::string_view file : {kConfig, kAdded, kSpecials, kTemplate}) {
    auto content = MR_TRY(object::GetAll(*tokenizer.store, folder + std::string(file), kMaxFile, call));
    if (!content) continue;
    files[std::string(file)] = std::move(content->bytes);
    has_config = has_config || file == kConfig;
  }
  for (const auto& [file, info] : MR_TRY(FilesOf({tokenizer.store, folder + std::string(kTemplateFolder)}, call))) {
    std::string path = std::string(kTemplateFolder) + file;
    if (!IsModelFile(path)) continue;
    auto content = MR_TRY(object::GetAll(*tokenizer.store, info.key, kMaxFile, call));
    if (content) files[std::move(path)] = std::move(content->bytes);
  }
  return has_config ? Status() : TakeRoles(files);
}

}  // namespace

std::optional<TokenizerOrigin> FindTokenizerOrigin(const Manifest& manifest) {
  for (const std::string_view name :
       {kFast, kSentencePiece, std::string_view("vocab.txt"), std::string_view("vocab.json")})
    if (manifest.tensors.contains(fmt::format("{}{}", kFilesGroup, name))) return std::nullopt;
  const Json* tokenizer = JsonFind(manifest.meta, "tokenizer");
  const Json* url = tokenizer == nullptr ? nullptr : JsonFind(*tokenizer, "url");
  const Json* fingerprint = tokenizer == nullptr ? nullptr : JsonFind(*tokenizer, "fingerprint");
  if (url == nullptr || !url->is_string() || url->get_ref<const std::string&>().empty()) return std::nullopt;
  return TokenizerOrigin{url->get<std::string>(),
                         fingerprint != nullptr && fingerprint->is_string() ? fingerprint->get<std::string>() : ""};
}

Result<std::map<std::string, std::string>> TokenizerFilesOf(std::string content, std::string_view name) {
  std::map<std::string, std::string> files;
  if (content.starts_with('{')) {
    const Json tokenizer = MR_TRY(ParseJson(content, name));
    if (JsonFind(tokenizer, "model") == nullptr)
      return Fail(Code::kUnsupported, "{} is not a tokenizer.json of the tokenizers library", name);
    files.emplace(kConfig, DumpJsonPretty(FastConfig(tokenizer)) + "\n");
    files.emplace(kFast, std::move(content));
    return files;
  }
  // A SentencePiece model begins with its first piece: field 1 of the protocol buffer, of variable length.
  if (!content.starts_with('\x0a'))
    return Fail(Code::kUnsupported, "{} is neither a tokenizer.json nor a SentencePiece model", name);
  files.emplace(kConfig, DumpJsonPretty(SentencePieceConfig(content)) + "\n");
  files.emplace(kSentencePiece, std::move(content));
  return files;
}

Result<std::map<std::string, std::string>> TokenizerFilesAt(object::Connection& connection, std::string_view url,
                                                            const Logger& log, object::Call call) {
  const object::Location location = MR_TRY(object::Locate(connection, url));
  if (!location.key.empty() && !location.key.ends_with('/') && !IsGgufUrl(url)) {
    auto content = MR_TRY(object::GetAll(*location.store, location.key, kMaxFile, call));
    if (content) {
      auto files = MR_TRY(TokenizerFilesOf(std::move(content->bytes), url));
      MR_TRY(TakeSiblings(location, files, call));
      return files;
    }
  }
  const ModelSource model = MR_TRY(ModelSource::Open(connection, url, std::nullopt, log, call));
  std::map<std::string, std::string> files;
  for (const std::string_view name : kNames) {
    auto content = MR_TRY(model.File(name, kMaxFile, call));
    if (content) files.emplace(name, *std::move(content));
  }
  for (const std::string& name : MR_TRY(model.FilesIn(kTemplateFolder, call))) {
    auto content = IsModelFile(name) ? MR_TRY(model.File(name, kMaxFile, call)) : std::nullopt;
    if (content) files.emplace(name, *std::move(content));
  }
  for (const std::string_view name : {kFast, kSentencePiece}) {
    const auto found = files.find(std::string(name));
    if (found == files.end() || files.contains(std::string(kConfig))) continue;
    auto made = MR_TRY(TokenizerFilesOf(found->second, name));
    files.merge(made);
    MR_TRY(TakeRoles(files));
  }
  if (files.empty())
    return Fail(Code::kNotFound, "{} has no tokenizer; copy tokenizer.json or a file of SentencePiece there", url);
  return files;
}

}  // namespace millrace::checkpoint
