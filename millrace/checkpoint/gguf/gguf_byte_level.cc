#include "millrace/checkpoint/gguf/gguf_byte_level.h"

#include <algorithm>
#include <optional>
#include <set>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

#include "millrace/base/json.h"

namespace millrace::checkpoint {
namespace {

using Tree = nlohmann::json;  // base/json.h says why not Json

/// llama.cpp's types of tokens (llama_token_type).
constexpr std::int64_t kNormal = 1, kUnknown = 2, kControl = 3, kUserDefined = 4, kUnused = 5;

constexpr std::string_view kGpt2Regex = R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
constexpr std::string_view kLlama3Regex =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|)"
    R"(\s+(?!\S)|\s+)";
constexpr std::string_view kQwen2Regex =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|)"
    R"(\s+(?!\S)|\s+)";
/// One after the other.
constexpr std::string_view kDefaultRegexes[] = {
    R"([\p{P}\$\+<=>\^~\|]+)", R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S))", R"(\p{N}+)",
    "[0-9][0-9][0-9]"};
constexpr std::string_view kGpt2Regexes[] = {kGpt2Regex}, kLlama3Regexes[] = {kLlama3Regex},
                           kQwen2Regexes[] = {kQwen2Regex};

/// How a value of tokenizer.ggml.pre splits texts, and what else it says.
struct PreTokenizer {
  std::string_view name;
  std::span<const std::string_view> regexes;
  bool composes = false;           ///< NFC first, as the tokenizers of Qwen 2 do. llama.cpp itself does not
  bool whole_words_first = false;  ///< "ignore_merges": a word that is a token is this token
  bool adds_bos = false;           ///< if the file does not say
};
constexpr PreTokenizer kPreTokenizers[] = {
    {.name = "default", .regexes = kDefaultRegexes},
    {.name = "gpt-2", .regexes = kGpt2Regexes},
    {.name = "llama-bpe", .regexes = kLlama3Regexes, .whole_words_first = true, .adds_bos = true},
    {.name = "qwen2", .regexes = kQwen2Regexes, .composes = true},
};

std::string Key(std::string_view name) { return fmt::format("tokenizer.ggml.{}", name); }

// ---- from GGUF ----

/// The vocabulary of a file.
class Vocabulary {
 public:
  static Result<Vocabulary> Of(const GgufHeader& header) {
    Vocabulary vocabulary;
    const auto* tokens = header.Find<std::vector<std::string>>(Key("tokens"));
    const auto* merges = header.Find<std::vector<std::string>>(Key("merges"));
    const auto* types = header.Find<std::vector<std::int64_t>>(Key("token_type"));
    if (tokens == nullptr || merges == nullptr)
      return Fail(Code::kCorrupt, "the file's vocabulary has no list of {}", tokens == nullptr ? "tokens" : "merges");
    if (types != nullptr && types->size() != tokens->size()) {
      return Fail(Code::kCorrupt, "the file's vocabulary has {} tokens and {} types of tokens", tokens->size(),
                  types->size());
    }
    vocabulary.tokens_ = tokens;
    vocabulary.merges_ = merges;
    vocabulary.types_ = types != nullptr ? *types : std::vector<std::int64_t>(tokens->size(), kNormal);
    std::set<std::string_view> seen;
    for (const std::string& token : *tokens) {
      if (!seen.insert(token).second)
        return Fail(Code::kCorrupt, "the file's vocabulary has the token \"{}\" twice", token);
    }
    const auto* pre = header.Find<std::string>(Key("pre"));
    if (pre == nullptr) {
      return Fail(Code::kUnsupported,
                  "the file does not say how texts are split (it has no tokenizer.ggml.pre); convert the model again "
                  "with a llama.cpp of today");
    }
    const auto* known = std::ranges::find(kPreTokenizers, *pre, &PreTokenizer::name);
    if (known == std::end(kPreTokenizers)) {
      return Fail(Code::kUnsupported,
                  "the file's tokenizer splits texts as \"{}\" (tokenizer.ggml.pre); default, gpt-2, llama-bpe and "
                  "qwen2 can be read",
                  *pre);
    }
    vocabulary.pre_ = known;
    const auto flag = [&](std::string_view name, bool otherwise) {
      const auto* says = header.Find<bool>(Key(name));
      return says != nullptr ? *says : otherwise;
    };
    vocabulary.bos_ = vocabulary.TokenOf(header, "bos_token_id");
    vocabulary.eos_ = vocabulary.TokenOf(header, "eos_token_id");
    vocabulary.pad_ = vocabulary.TokenOf(header, "padding_token_id");
    vocabulary.unk_ = vocabulary.TokenOf(header, "unknown_token_id");
    // Special whatever their types: old files do not say so.
    if (vocabulary.bos_) vocabulary.types_[*vocabulary.bos_] = kControl;
    if (vocabulary.eos_) vocabulary.types_[*vocabulary.eos_] = kControl;
    vocabulary.adds_bos_ = flag("add_bos_token", known->adds_bos && vocabulary.bos_);
    vocabulary.adds_eos_ = flag("add_eos_token", false);
    if ((vocabulary.adds_bos_ && !vocabulary.bos_) || (vocabulary.adds_eos_ && !vocabulary.eos_)) {
      return Fail(Code::kCorrupt, "the file's vocabulary adds a token to texts, but does not say which one");
    }
    return vocabulary;
  }

  /// Returns the tokenizer.json. It is written as text: a JSON value of 100,000 members would take quadratic time.
  std::string ToTokenizerJson() const {
    const Json normalizer = pre_->composes ? Json{{"type", "NFC"}} : Json();
    const Json decoder{{"type", "ByteLevel"}, {"add_prefix_space", true}, {"trim_offsets", true}, {"use_regex", true}};
    std::string json = "{\"version\":\"1.0\",\"truncation\":null,\"padding\":null,\"added_tokens\":[";
    bool first = true;
    const std::size_t words = WordCount();
    for (std::size_t id = 0; id < tokens_->size(); ++id) {
      if (!IsAdded(id)) continue;
      const Json added{{"id", id},
                       {"content", (*tokens_)[id]},
                       {"single_word", false},
                       {"lstrip", false},
                       {"rstrip", false},
                       {"normalized", false},
                       {"special", types_[id] != kUserDefined}};
      json += (std::exchange(first, false) ? "" : ",") + DumpJson(added);
    }
    json += fmt::format("],\"normalizer\":{},\"pre_tokenizer\":{},\"post_processor\":{},\"decoder\":{},",
                        DumpJson(normalizer), DumpJson(Splits()), DumpJson(Template()), DumpJson(decoder));
    json += "\"model\":{\"type\":\"BPE\",\"dropout\":null,\"unk_token\":null,\"continuing_subword_prefix\":null,";
    json += "\"end_of_word_suffix\":null,\"fuse_unk\":false,\"byte_fallback\":false,";
    json += fmt::format("\"ignore_merges\":{},\"vocab\":{{", pre_->whole_words_first);
    for (std::size_t id = 0; id < words; ++id) {
      json += fmt::format("{}{}:{}", id == 0 ? "" : ",", DumpJson((*tokens_)[id]), id);
    }
    json += "},\"merges\":[";
    for (std::size_t rank = 0; rank < merges_->size(); ++rank) {
      json += (rank == 0 ? "" : ",") + DumpJson((*merges_)[rank]);
    }
    return json + "]}}";
  }

  std::string ToConfig(const std::string* chat_template) const {
    Json config{{"tokenizer_class", "PreTrainedTokenizerFast"},
                {"clean_up_tokenization_spaces", false},
                {"add_bos_token", adds_bos_},
                {"add_eos_token", adds_eos_}};
    for (const auto& [role, id] :
         {std::pair("bos_token", bos_), {"eos_token", eos_}, {"unk_token", unk_}, {"pad_token", pad_}}) {
      if (id) config[role] = (*tokens_)[*id];
    }
    if (chat_template != nullptr) config["chat_template"] = *chat_template;
    return DumpJsonPretty(config) + "\n";
  }

 private:
  /// Returns the token that the metadata give this role.
  std::optional<std::size_t> TokenOf(const GgufHeader& header, std::string_view role) const {
    const auto* id = header.Find<std::int64_t>(Key(role));
    if (id == nullptr || *id < 0 || static_cast<std::uint64_t>(*id) >= tokens_->size()) return std::nullopt;
    return static_cast<std::size_t>(*id);
  }

  bool IsAdded(std::size_t id) const {
    return types_[id] == kControl || types_[id] == kUserDefined || types_[id] == kUnknown;
  }

  /// Returns how many tokens are in the vocabulary of the model. The tokenizers library numbers added tokens behind it.
  /// Unused tokens at the end are left out: they pad the model's matrices.
  std::size_t WordCount() const {
    std::size_t words = types_.size();
    while (words > 0 && types_[words - 1] == kUnused) --words;
    while (words > 0 && IsAdded(words - 1)) --words;
    return words;
  }

  Json Splits() const {
    const bool own = pre_->regexes.size() == 1 && pre_->regexes[0] == kGpt2Regex;
    Json bytes{{"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", own}};
    if (own) return bytes;
    Json steps = Json::array();
    for (const std::string_view regex : pre_->regexes) {
      steps.push_back(
          {{"type", "Split"}, {"pattern", {{"Regex", regex}}}, {"behavior", "Isolated"}, {"invert", false}});
    }
    steps.push_back(bytes);
    return {{"type", "Sequence"}, {"pretokenizers", steps}};
  }

  Json Template() const {
    Json bytes{{"type", "ByteLevel"}, {"add_prefix_space", true}, {"trim_offsets", false}, {"use_regex", true}};
    if (!adds_bos_ && !adds_eos_) return bytes;
    Json used = Json::object();
    const auto special = [&](std::size_t id, int type) {
      const std::string& text = (*tokens_)[id];
      used[text] = {{"id", text}, {"ids", {id}}, {"tokens", {text}}};
      return Json{{"SpecialToken", {{"id", text}, {"type_id", type}}}};
    };
    const auto around = [&](Json& items, const char* sequence, int type) {
      if (adds_bos_) items.push_back(special(*bos_, type));
      items.push_back({{"Sequence", {{"id", sequence}, {"type_id", type}}}});
      if (adds_eos_) items.push_back(special(*eos_, type));
    };
    Json single = Json::array(), pair = Json::array();
    around(single, "A", 0);
    around(pair, "A", 0);
    around(pair, "B", 1);
    const Json processor{{"type", "TemplateProcessing"}, {"single", single}, {"pair", pair}, {"special_tokens", used}};
    return {{"type", "Sequence"}, {"processors", Json::array({bytes, processor})}};
  }

  // Borrowed from the header.
  const std::vector<std::string>* tokens_ = nullptr;
  const std::vector<std::string>* merges_ = nullptr;
  std::vector<std::int64_t> types_;
  const PreTokenizer* pre_ = nullptr;
  std::optional<std::size_t> bos_, eos_, unk_, pad_;
  bool adds_bos_ = false, adds_eos_ = false;
};

// ---- to GGUF ----

const Tree kNothing;

const Tree& Member(const Tree& object, const char* key) {
  const auto found = object.is_object() ? object.find(key) : object.end();
  return object.is_object() && found != object.end() ? *found : kNothing;
}
std::string TextMember(const Tree& object, const char* key) {
  const Tree& value = Member(object, key);
  return value.is_string() ? value.get<std::string>() : "";
}
bool FlagMember(const Tree& object, const char* key, bool otherwise) {
  const Tree& value = Member(object, key);
  return value.is_boolean() ? value.get<bool>() : otherwise;
}
std::vector<Tree> StepsOf(const Tree& value, const char* plural) {
  if (value.is_null()) return {};
  if (TextMember(value, "type") != "Sequence") return {value};
  const Tree& steps = Member(value, plural);
  return steps.is_array() ? steps.get<std::vector<Tree>>() : std::vector<Tree>();
}

std::unexpected<Error> Unlike(std::string_view what) {
  return Fail(Code::kUnsupported, "GGUF files have no name for the {} of its tokenizer.json", what);
}

/// Returns the regular expressions that split texts, one after the other.
Result<std::vector<std::string>> RegexesOf(const Tree& tokenizer) {
  std::vector<Tree> steps = StepsOf(Member(tokenizer, "pre_tokenizer"), "pretokenizers");
  if (steps.empty() || TextMember(steps.back(), "type") != "ByteLevel" ||
      FlagMember(steps.back(), "add_prefix_space", true))
    return Unlike("pre_tokenizer");
  const bool own = FlagMember(steps.back(), "use_regex", true);
  steps.pop_back();
  if (own && !steps.empty()) return Unlike("pre_tokenizer");
  if (own) return std::vector{std::string(kGpt2Regex)};
  std::vector<std::string> regexes;
  for (const Tree& step : steps) {
    const std::string behavior = TextMember(step, "behavior");
    // The patterns match all text, so it does not matter what becomes of text between matches.
    const bool splits = behavior == "Isolated" || (steps.size() == 1 && behavior == "Removed");
    if (TextMember(step, "type") != "Split" || !splits || FlagMember(step, "invert", false) != (behavior == "Removed"))
      return Unlike("pre_tokenizer");
    regexes.push_back(TextMember(Member(step, "pattern"), "Regex"));
  }
  return regexes;
}

/// Errors: kUnsupported if GGUF has no name for the way in which the tokenizer splits texts.
Result<const PreTokenizer*> PreTokenizerOf(const Tree& tokenizer) {
  const Tree& model = Member(tokenizer, "model");
  const Tree& dropout = Member(model, "dropout");
  const std::string type = TextMember(model, "type");
  if (type != "BPE" && (!type.empty() || !model.contains("merges"))) return Unlike("model");  // old files have no type
  if (FlagMember(model, "byte_fallback", false) || (dropout.is_number() && dropout.get<double>() != 0) ||
      !TextMember(model, "continuing_subword_prefix").empty() || !TextMember(model, "end_of_word_suffix").empty())
    return Unlike("model");
  if (TextMember(Member(tokenizer, "decoder"), "type") != "ByteLevel") return Unlike("decoder");
  bool composes = false;
  for (const Tree& step : StepsOf(Member(tokenizer, "normalizer"), "normalizers")) {
    if (TextMember(step, "type") != "NFC") return Unlike("normalizer");
    composes = true;
  }
  const std::vector<std::string> regexes = MR_TRY(RegexesOf(tokenizer));
  const bool whole_words_first = FlagMember(model, "ignore_merges", false);
  const auto* known = std::ranges::find_if(kPreTokenizers, [&](const PreTokenizer& one) {
    return std::ranges::equal(one.regexes, regexes) && one.composes == composes &&
           one.whole_words_first == whole_words_first;
  });
  if (known == std::end(kPreTokenizers)) return Unlike("pre_tokenizer, normalizer and ignore_merges");
  return known;
}

/// The tokens of a tokenizer.json by id, with their types.
struct TokenList {
  std::vector<std::string> texts;
  std::vector<std::int64_t> types;

  /// Returns false if there are no more than `most` tokens.
  bool Set(const Tree& id, const std::string& text, std::int64_t type, std::uint64_t most) {
    if (!id.is_number_unsigned() || id.get<std::uint64_t>() >= most || text.empty()) return false;
    const auto at = id.get<std::size_t>();
    if (at >= texts.size()) texts.resize(at + 1);
    types.resize(texts.size(), kUnused);
    texts[at] = text;
    types[at] = type;
    return true;
  }
  std::optional<std::int64_t> IdOf(const std::string& text) const {
    const auto found = std::ranges::find(texts, text);
    if (text.empty() || found == texts.end()) return std::nullopt;
    return found - texts.begin();
  }
};

Result<TokenList> TokensOf(const Tree& tokenizer, std::uint64_t most) {
  TokenList list;
  const auto too_many = [&] {
    return Fail(Code::kUnsupported, "the tokenizer.json has tokens behind the {} of the model", most);
  };
  for (const auto& [text, id] : Member(Member(tokenizer, "model"), "vocab").items()) {
    if (!list.Set(id, text, kNormal, most)) return too_many();
  }
  for (const Tree& added : Member(tokenizer, "added_tokens")) {
    const bool special = FlagMember(added, "special", false);
    for (const char* flag : {"lstrip", "rstrip", "single_word"}) {
      if (!special && FlagMember(added, flag, false)) return Unlike("added tokens with " + std::string(flag));
    }
    if (!list.Set(Member(added, "id"), TextMember(added, "content"), special ? kControl : kUserDefined, most))
      return too_many();
  }
  for (std::size_t id = 0; id < most; ++id) {
    if (id < list.texts.size() && !list.texts[id].empty()) continue;
    list.Set(id, fmt::format("[PAD{}]", id), kUnused, most);
  }
  return list;
}

Result<std::vector<std::string>> MergesOf(const Tree& tokenizer) {
  std::vector<std::string> merges;
  for (const Tree& merge : Member(Member(tokenizer, "model"), "merges")) {
    const bool pair = merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string();
    if (!pair && !merge.is_string()) return Fail(Code::kUnsupported, "a merge of its tokenizer.json is no two tokens");
    merges.push_back(pair ? merge[0].get<std::string>() + " " + merge[1].get<std::string>() : merge.get<std::string>());
  }
  return merges;
}

/// The special tokens that the template of the post-processor puts around a text; empty for none.
struct Ends {
  std::string begin, end;
};

Ends EndsOf(const Tree& tokenizer) {
  Ends ends;
  for (const Tree& step : StepsOf(Member(tokenizer, "post_processor"), "processors")) {
    const Tree& single = Member(step, "single");
    if (TextMember(step, "type") != "TemplateProcessing" || !single.is_array() || single.empty()) continue;
    ends.begin = TextMember(Member(single.front(), "SpecialToken"), "id");
    ends.end = TextMember(Member(single.back(), "SpecialToken"), "id");
  }
  return ends;
}

/// Returns the token that tokenizer_config.json gives a role: a text, or an object with the text.
std::string RoleOf(const Tree& config, const char* role) {
  const Tree& value = Member(config, role);
  return value.is_object() ? TextMember(value, "content") : TextMember(config, role);
}

}  // namespace

Result<std::map<std::string, std::string>> ByteLevelFilesOf(const GgufHeader& header) {
  const Vocabulary vocabulary = MR_TRY(Vocabulary::Of(header));
  std::map<std::string, std::string> files;
  files["tokenizer.json"] = vocabulary.ToTokenizerJson();
  files["tokenizer_config.json"] = vocabulary.ToConfig(header.Find<std::string>("tokenizer.chat_template"));
  return files;
}

Status AddByteLevel(std::string_view tokenizer_json, std::string_view config_json, std::uint64_t tokens,
                    std::map<std::string, GgufValue>& metadata) {
  const Tree tokenizer = MR_TRY(ParseJsonTree(tokenizer_json, "tokenizer.json"));
  const Tree config = config_json.empty() ? Tree() : MR_TRY(ParseJsonTree(config_json, "tokenizer_config.json"));
  const PreTokenizer* pre = MR_TRY(PreTokenizerOf(tokenizer));
  TokenList list = MR_TRY(TokensOf(tokenizer, tokens));
  std::vector<std::string> merges = MR_TRY(MergesOf(tokenizer));
  const Ends ends = EndsOf(tokenizer);
  std::map<std::string, std::int64_t> ids;
  for (const auto& [name, role, otherwise] : {std::tuple("bos_token_id", "bos_token", ends.begin),
                                              {"eos_token_id", "eos_token", ends.end},
                                              {"unknown_token_id", "unk_token", std::string()},
                                              {"padding_token_id", "pad_token", std::string()}}) {
    const std::string text = RoleOf(config, role);
    if (const auto id = list.IdOf(text.empty() ? otherwise : text)) ids[name] = *id;
  }
  metadata[Key("model")] = std::string("gpt2");
  metadata[Key("pre")] = std::string(pre->name);
  metadata[Key("tokens")] = std::move(list.texts);
  metadata[Key("token_type")] = std::move(list.types);
  metadata[Key("merges")] = std::move(merges);
  metadata[Key("add_bos_token")] = !ends.begin.empty() && ids.contains("bos_token_id");
  metadata[Key("add_eos_token")] = !ends.end.empty() && ids.contains("eos_token_id");
  for (const auto& [name, id] : ids) metadata[Key(name)] = id;
  if (const Tree& chat = Member(config, "chat_template"); chat.is_string()) {
    metadata["tokenizer.chat_template"] = chat.get<std::string>();
  }
  return {};
}

}  // namespace millrace::checkpoint
