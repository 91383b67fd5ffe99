#include "millrace/tokenizer/huggingface/hf_json.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "millrace/tokenizer/byte_level/byte_alphabet.h"
#include "millrace/tokenizer/byte_level/byte_bpe.h"
#include "millrace/tokenizer/huggingface/hf_file.h"
#include "millrace/tokenizer/huggingface/hf_model.h"
#include "millrace/tokenizer/huggingface/hf_pipeline.h"
#include "millrace/tokenizer/sentencepiece/sentencepiece.h"
#include "millrace/tokenizer/splitting/named_patterns.h"
#include "millrace/tokenizer/unicode/utf8.h"
#include "millrace/tokenizer/wordpiece/wordpiece.h"

namespace millrace::tokenizer {

using namespace hf;  // NOLINT(google-build-using-namespace): the file's parts

namespace {

Status ReadVocabulary(const Json& vocab, TokenizerFile& file) {
  if (!vocab.is_object())
    return Fail(Code::kInvalidArgument,
                "the tokenizer's model has no vocabulary; expected \"vocab\", an object of tokens with their ids");
  for (auto& [token, id] : vocab.items()) {
    if (!id.is_number_unsigned() || id.get<std::uint64_t>() >= kMaxVocabulary) {
      return Fail(Code::kInvalidArgument,
                  "the id of the token \"{}\" is no number below {}; ids must be whole numbers from 0 on", token,
                  kMaxVocabulary);
    }
    auto at = id.get<std::size_t>();
    if (at >= file.tokens.size()) file.tokens.resize(at + 1);
    if (!file.tokens[at].empty()) {
      return Fail(Code::kInvalidArgument,
                  "the tokenizer has two tokens of the id {}; each token of \"vocab\" must have an id of its own", at);
    }
    file.tokens[at] = token;
  }
  return {};
}

Status ReadAddedTokens(TokenizerFile& file) {
  for (const Json& token : Member(file.json, "added_tokens")) {
    const Json& id = Member(token, "id");
    AddedToken added{.text = StringMember(token, "content"),
                     .special = BoolMember(token, "special"),
                     .single_word = BoolMember(token, "single_word"),
                     .lstrip = BoolMember(token, "lstrip"),
                     .rstrip = BoolMember(token, "rstrip"),
                     .normalized = BoolMember(token, "normalized", true)};
    if (!id.is_number_unsigned() || id.get<std::uint64_t>() >= kMaxVocabulary || added.text.empty()) {
      return Fail(
          Code::kInvalidArgument,
          "an added token has no text or no id below {}; each of added_tokens needs a \"content\" and an \"id\"",
          kMaxVocabulary);
    }
    added.id = id.get<TokenId>();
    file.added.push_back(std::move(added));
  }
  return {};
}

/// Finds BOS and EOS: the special tokens that the post-processor adds, else tokens with the usual names.
void FindEnds(TokenizerFile& file) {
  // Without a post-processor the library adds no tokens.
  bool adds_bos = false;
  for (const Json& processor : Steps(Member(file.json, "post_processor"), "processors")) {
    if (StringMember(processor, "type") == "TemplateProcessing") {
      const Json& single = Member(processor, "single");
      if (!single.is_array() || single.empty()) continue;
      auto special = [&](const Json& item) { return file.IdOf(StringMember(Member(item, "SpecialToken"), "id")); };
      file.named.bos = special(single.front());
      adds_bos = file.named.bos != kNoToken;
      file.named.eos = special(single.back());
    } else if (StringMember(processor, "type") == "BertProcessing" ||
               StringMember(processor, "type") == "RobertaProcessing") {
      auto name = [&](const char* key) {
        const Json& pair = Member(processor, key);
        return pair.is_array() && !pair.empty() && pair[0].is_string() ? pair[0].get<std::string>() : std::string();
      };
      file.named.bos = file.IdOf(name("cls"));
      adds_bos = file.named.bos != kNoToken;
      file.named.eos = file.IdOf(name("sep"));
    }
  }
  file.named.adds_bos = adds_bos;
  auto first_of = [&](TokenId& id, std::initializer_list<std::string_view> names) {
    for (std::string_view name : names) {
      if (id == kNoToken) id = file.IdOf(name);
    }
  };
  first_of(file.named.bos, {"<s>", "<|begin_of_text|>", "[CLS]"});
  first_of(file.named.eos, {"</s>", "<|end_of_text|>", "<|endoftext|>", "[SEP]"});
  first_of(file.named.pad, {"<pad>", "[PAD]", "<|pad|>"});
}

template <class Merge>
Result<std::vector<Merge>> ResolveMerges(const TokenizerFile& file) {
  auto pairs = MR_TRY(ReadMerges(Member(Member(file.json, "model"), "merges")));
  const ModelVocabulary index(file);
  std::vector<Merge> merges;
  for (auto& [left, right] : pairs) {
    Merge merge{index.Find(left), index.Find(right), index.Find(left + right)};
    if (merge.left == kNoToken || merge.right == kNoToken || merge.merged == kNoToken) {
      return FailMerge(file, left, right);
    }
    merges.push_back(merge);
  }
  return merges;
}

/// Reads how a byte-level file splits text. Returns false if its pre-tokenizer is not byte-level.
Result<bool> ReadByteLevelSplit(const TokenizerFile& file, ByteBpeSpec& spec) {
  const Json& pre_tokenizer = Member(file.json, "pre_tokenizer");
  auto steps = Steps(pre_tokenizer, "pretokenizers");
  if (steps.empty() || StringMember(steps.back(), "type") != "ByteLevel") return false;
  spec.add_prefix_space = BoolMember(steps.back(), "add_prefix_space", true);
  bool own_pattern = BoolMember(steps.back(), "use_regex", true);
  if (steps.size() == 1 && own_pattern) {
    spec.pattern = SplitPattern::kGpt2;
    return true;
  }
  if (steps.size() == 2 && own_pattern && !spec.add_prefix_space && StringMember(steps[0], "type") == "Digits" &&
      BoolMember(steps[0], "individual_digits")) {
    spec.pattern = SplitPattern::kGpt2Digits;
    return true;
  }
  if (own_pattern || spec.add_prefix_space) return Unsupported("pre_tokenizer", pre_tokenizer);
  steps.pop_back();
  std::vector<std::string> patterns;
  for (const Json& step : steps) {
    // The patterns match all text. So it does not matter whether text between matches is kept or removed.
    const bool inverted =
        steps.size() == 1 && BoolMember(step, "invert") && StringMember(step, "behavior") == "Removed";
    const bool isolated = !BoolMember(step, "invert") && StringMember(step, "behavior") == "Isolated";
    if (StringMember(step, "type") == "Split" && (inverted || isolated)) {
      patterns.push_back(StringMember(Member(step, "pattern"), "Regex"));
    } else if (StringMember(step, "type") == "Digits" && BoolMember(step, "individual_digits")) {
      patterns.emplace_back(kEachDigit);
    } else {
      return Unsupported("pre_tokenizer", pre_tokenizer);
    }
  }
  if (patterns.empty()) return Unsupported("pre_tokenizer", pre_tokenizer);
  auto known = PatternOf(patterns);
  if (!known) return Unsupported("pattern", patterns.size() == 1 ? Json(patterns[0]) : Json(patterns));
  spec.pattern = *known;
  return true;
}

/// Returns true if the decoder only joins bytes.
bool DecodesBytes(const TokenizerFile& file) {
  return StringMember(Member(file.json, "decoder"), "type") == "ByteLevel";
}

Result<std::shared_ptr<const Tokenizer>> MakeByteLevel(const TokenizerFile& file, ByteBpeSpec spec,
                                                       std::string fingerprint) {
  if (!DecodesBytes(file)) return Unsupported("decoder", Member(file.json, "decoder"));
  for (const Json& step : Steps(Member(file.json, "normalizer"), "normalizers")) {
    if (StringMember(step, "type") != "NFC") return Unsupported("normalizer", step);
    spec.compose = true;
  }
  const Json& model = Member(file.json, "model");
  if (BoolMember(model, "byte_fallback"))
    return Fail(Code::kUnsupported, "byte_fallback of a byte-level model is not supported");
  spec.merges = MR_TRY(ResolveMerges<ByteBpeSpec::Merge>(file));
  spec.whole_words_first = BoolMember(model, "ignore_merges");
  spec.added = file.added;
  for (const std::string& token : file.tokens) {
    auto bytes = TheByteAlphabet().ToBytes(token);
    if (!bytes && file.IdOf(token) == kNoToken) {
      return Fail(Code::kInvalidArgument,
                  "the tokenizer's token \"{}\" is not written in the byte-level alphabet; write a space as Ġ, or list "
                  "the token in added_tokens",
                  token);
    }
    spec.tokens.push_back(bytes.value_or(""));
  }
  spec.named = file.named;
  return MakeByteBpe(std::move(spec), std::move(fingerprint));
}

/// Reads files such as Llama 2's, which replace spaces by marks and merge the whole text as one word.
Result<SentencePieceTraits> ReadSpaceMarks(const TokenizerFile& file) {
  SentencePieceTraits traits{
      .algorithm = SentencePieceTraits::Algorithm::kBpe, .add_dummy_prefix = false, .remove_extra_whitespaces = false};
  const Json& normalizer = Member(file.json, "normalizer");
  bool replaced = false;
  for (const Json& step : Steps(normalizer, "normalizers")) {
    if (StringMember(step, "type") == "Prepend" && StringMember(step, "prepend") == kSpaceMark && !replaced &&
        !traits.add_dummy_prefix) {
      traits.add_dummy_prefix = true;
    } else if (StringMember(step, "type") == "Replace" && StringMember(Member(step, "pattern"), "String") == " " &&
               StringMember(step, "content") == kSpaceMark) {
      replaced = true;
    } else {
      return Unsupported("normalizer", normalizer);
    }
  }
  const Json& pre_tokenizer = Member(file.json, "pre_tokenizer");
  // Gemma's file splits at spaces after its normalizer replaced all of them.
  bool splits_nothing = StringMember(pre_tokenizer, "type") == "Split" &&
                        StringMember(Member(pre_tokenizer, "pattern"), "String") == " " &&
                        !BoolMember(pre_tokenizer, "invert");
  if (replaced && (pre_tokenizer.is_null() || splits_nothing)) return traits;
  if (replaced || StringMember(pre_tokenizer, "type") != "Metaspace" ||
      StringMember(pre_tokenizer, "replacement") != kSpaceMark || BoolMember(pre_tokenizer, "split", true) ||
      traits.add_dummy_prefix) {
    return Unsupported("pre_tokenizer", pre_tokenizer);
  }
  std::string scheme = StringMember(pre_tokenizer, "prepend_scheme");
  if (scheme != "never" && scheme != "first") return Unsupported("prepend_scheme", Json(scheme));
  traits.add_dummy_prefix = scheme == "first";
  traits.prefix_every_part = false;
  traits.prefix_marked = false;
  return traits;
}

/// Returns true if the decoder turns marks into spaces, joins bytes, and removes the prefix if there is one.
bool DecodesMarks(const TokenizerFile& file, bool prefix) {
  const auto steps = Steps(Member(file.json, "decoder"), "decoders");
  auto is = [&](std::size_t at, std::string_view type) {
    return at < steps.size() && StringMember(steps[at], "type") == type;
  };
  if (!is(0, "Replace") || StringMember(Member(steps[0], "pattern"), "String") != kSpaceMark ||
      StringMember(steps[0], "content") != " " || !is(1, "ByteFallback") || !is(2, "Fuse")) {
    return false;
  }
  if (!prefix) return steps.size() == 3;
  return steps.size() == 4 && is(3, "Strip") && StringMember(steps[3], "content") == " " &&
         Member(steps[3], "start") == 1 && Member(steps[3], "stop") == 0;
}

/// Adds the file's tokens to `model` as pieces. Added tokens decide the types of their pieces.
Status AddPieces(const TokenizerFile& file, SentencePieceModel& model) {
  using Type = SentencePieceModel::Type;
  for (std::size_t id = 0; id < file.tokens.size(); ++id) {
    const std::string& token = file.tokens[id];
    bool is_byte = token.size() == 6 && token.starts_with("<0x") && token.ends_with('>');
    if (token.empty()) return Fail(Code::kUnsupported, "ids without a token ({}) are not supported", id);
    if (token.contains(' ')) return Fail(Code::kUnsupported, "the token \"{}\" with a space is not supported", token);
    model.pieces.push_back({token, 0, is_byte ? Type::kByte : Type::kNormal});
  }
  for (const AddedToken& added : file.added) {
    auto at = static_cast<std::size_t>(added.id);
    MR_TRY(CheckFoundEarly(added));
    if (at >= model.pieces.size()) {
      // As a piece, this token would take part in merging, which the library does not do.
      if (!added.special) return Fail(Code::kUnsupported, "added tokens that are text are not supported");
      model.pieces.resize(at + 1);
      model.pieces[at] = {added.text, 0, Type::kControl};
    }
    if (added.special) model.pieces[at].type = Type::kControl;
  }
  return {};
}

Result<std::shared_ptr<const Tokenizer>> MakeCharacterBpe(const TokenizerFile& file, std::string fingerprint) {
  SentencePieceModel model;
  model.traits = MR_TRY(ReadSpaceMarks(file));
  if (!DecodesMarks(file, model.traits.add_dummy_prefix)) return Unsupported("decoder", Member(file.json, "decoder"));
  const Json& json = Member(file.json, "model");
  model.traits.byte_fallback = BoolMember(json, "byte_fallback");
  model.traits.whole_byte_runs = true;
  if (!model.traits.byte_fallback)
    return Fail(Code::kUnsupported, "BPE of characters without byte_fallback is not supported");
  if (BoolMember(json, "ignore_merges"))
    return Fail(Code::kUnsupported, "ignore_merges of a BPE of characters is not supported");
  using Type = SentencePieceModel::Type;
  MR_TRY(AddPieces(file, model));
  model.added = file.added;
  if (file.named.unk == kNoToken) return Fail(Code::kUnsupported, "a model without an unk_token is not supported");
  model.pieces[static_cast<std::size_t>(file.named.unk)].type = Type::kUnknown;
  auto name = [&](TokenId id) {
    return id == kNoToken ? std::string() : std::string(model.pieces[static_cast<std::size_t>(id)].text);
  };
  model.traits.unk_piece = name(file.named.unk);
  model.traits.bos_piece = name(file.named.bos);
  model.traits.eos_piece = name(file.named.eos);
  model.traits.pad_piece = name(file.named.pad);
  model.merges = MR_TRY(ResolveMerges<SentencePieceModel::Merge>(file));
  for (const auto& merge : *model.merges) {
    for (TokenId side : {merge.left, merge.right, merge.merged}) {
      if (model.pieces[static_cast<std::size_t>(side)].type != Type::kNormal) {
        return Fail(Code::kUnsupported, "a merge of the special token or byte \"{}\" is not supported",
                    model.pieces[static_cast<std::size_t>(side)].text);
      }
    }
  }
  return MakeSentencePiece(model, std::move(fingerprint));
}

/// Makes a tokenizer with the faster code of byte_level or sentencepiece. Errors: kUnsupported for files that this code
/// does not encode exactly.
Result<std::shared_ptr<const Tokenizer>> MakeQuickBpe(const TokenizerFile& file, const std::string& fingerprint) {
  for (const char* affix : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    if (!StringMember(Member(file.json, "model"), affix).empty()) return Unsupported("model", Json(affix));
  }
  ByteBpeSpec spec;
  if (MR_TRY(ReadByteLevelSplit(file, spec))) return MakeByteLevel(file, std::move(spec), fingerprint);
  return MakeCharacterBpe(file, fingerprint);
}

Result<std::shared_ptr<const Tokenizer>> MakeBpe(TokenizerFile file, std::string fingerprint) {
  const Json& model = Member(file.json, "model");
  const Json& dropout = Member(model, "dropout");
  if (dropout.is_number() && dropout.get<double>() != 0) return Fail(Code::kUnsupported, "dropout is not supported");
  std::string unk = StringMember(model, "unk_token");
  for (std::size_t id = 0; id < file.tokens.size() && !unk.empty(); ++id) {
    if (file.tokens[id] == unk) file.named.unk = static_cast<TokenId>(id);
  }
  if (auto quick = MakeQuickBpe(file, fingerprint)) return quick;
  return MakePipeline(std::move(file), std::move(fingerprint));
}

/// Makes a tokenizer with the faster code of wordpiece. Errors: kUnsupported for files that are not BERT's.
Result<std::shared_ptr<const Tokenizer>> MakeQuickBert(const TokenizerFile& file, const std::string& fingerprint) {
  const Json &model = Member(file.json, "model"), &normalizer = Member(file.json, "normalizer");
  const Json& decoder = Member(file.json, "decoder");
  if (StringMember(normalizer, "type") != "BertNormalizer") return Unsupported("normalizer", normalizer);
  if (StringMember(Member(file.json, "pre_tokenizer"), "type") != "BertPreTokenizer") {
    return Unsupported("pre_tokenizer", Member(file.json, "pre_tokenizer"));
  }
  WordPieceSpec spec{.tokens = file.tokens, .named = file.named};
  spec.continuing_prefix = StringMember(model, "continuing_subword_prefix");
  if (spec.continuing_prefix.empty()) return Unsupported("continuing_subword_prefix", Json(""));
  if (StringMember(decoder, "type") != "WordPiece" || StringMember(decoder, "prefix") != spec.continuing_prefix) {
    return Unsupported("decoder", decoder);
  }
  spec.cleanup = BoolMember(decoder, "cleanup", true);
  const Json& longest = Member(model, "max_input_chars_per_word");
  if (longest.is_number_unsigned()) spec.max_word_characters = longest.get<std::size_t>();
  spec.normalizer.clean_text = BoolMember(normalizer, "clean_text", true);
  spec.normalizer.handle_chinese_chars = BoolMember(normalizer, "handle_chinese_chars", true);
  spec.normalizer.lowercase = BoolMember(normalizer, "lowercase", true);
  spec.normalizer.strip_accents = BoolMember(normalizer, "strip_accents", spec.normalizer.lowercase);
  for (const AddedToken& added : file.added) {
    MR_TRY(CheckFoundEarly(added));
    auto at = static_cast<std::size_t>(added.id);
    if (at >= spec.tokens.size()) spec.tokens.resize(at + 1);
    if (spec.tokens[at].empty()) spec.not_in_words.push_back(added.id);
    spec.tokens[at] = added.text;
  }
  spec.added = file.added;
  for (std::size_t id = 0; id < spec.tokens.size(); ++id) {
    if (!spec.tokens[id].empty() && spec.tokens[id] == StringMember(model, "unk_token"))
      spec.named.unk = static_cast<TokenId>(id);
  }
  return MakeWordPiece(std::move(spec), fingerprint);
}

Result<std::shared_ptr<const Tokenizer>> MakeBert(TokenizerFile file, std::string fingerprint) {
  if (auto quick = MakeQuickBert(file, fingerprint)) return quick;
  return MakePipeline(std::move(file), std::move(fingerprint));
}

/// The double nearest to 10^exponent. REQUIRES: 0 <= exponent <= 308.
double PowerOfTen(int exponent) {
  const std::string text = fmt::format("1e{}", exponent);
  double value = 0;
  std::from_chars(text.data(), text.data() + text.size(), value);
  return value;
}

/// The number that the library takes for the shortest text of `exact`. Its JSON parser (serde_json without
/// `float_roundtrip`) multiplies or divides the digits, as a whole number, by a power of ten and rounds twice. Sums of
/// scores that tie in one way of rounding do not in the other.
double AsLibraryReads(double exact) {
  std::array<char, 64> text;
  const auto written = std::to_chars(text.data(), text.data() + text.size(), exact, std::chars_format::scientific);
  const std::string_view whole(text.data(), static_cast<std::size_t>(written.ptr - text.data()));
  const std::size_t mark = whole.find('e');
  std::uint64_t digits = 0;
  int exponent = 0;
  bool after_point = false;
  for (char c : whole.substr(0, mark)) {
    if (c == '.') after_point = true;
    if (c < '0' || c > '9') continue;
    digits = digits * 10 + static_cast<std::uint64_t>(c - '0');  // 17 digits at most
    if (after_point) --exponent;
  }
  const std::string_view power = whole.substr(mark + 2);
  int tens = 0;
  std::from_chars(power.begin(), power.end(), tens);
  exponent += whole[mark + 1] == '-' ? -tens : tens;
  if (exponent < -308 || exponent > 308) return exact;
  const double factor = PowerOfTen(exponent < 0 ? -exponent : exponent);
  const double value = exponent < 0 ? static_cast<double>(digits) / factor : static_cast<double>(digits) * factor;
  return std::signbit(exact) ? -value : value;
}

Status ReadScores(const Json& vocabulary, TokenizerFile& file) {
  if (!vocabulary.is_array() || vocabulary.size() > kMaxVocabulary) {
    return Fail(
        Code::kInvalidArgument,
        "the tokenizer's model has no vocabulary; expected \"vocab\", a list of at most {} pairs of a text and a score",
        kMaxVocabulary);
  }
  for (const Json& one : vocabulary) {
    if (!one.is_array() || one.size() != 2 || !one[0].is_string() || !one[1].is_number() ||
        !std::isfinite(one[1].get<double>())) {
      return Fail(
          Code::kInvalidArgument,
          "the token {} of its vocabulary is not a text and a score; expected a pair of a text and a finite number",
          file.scores.size());
    }
    file.tokens.push_back(one[0].get<std::string>());
    file.scores.push_back(AsLibraryReads(one[1].get<double>()));
  }
  return {};
}

}  // namespace

Result<std::shared_ptr<const Tokenizer>> LoadTokenizerJson(nlohmann::json json, std::string fingerprint) {
  TokenizerFile file;
  file.json = std::move(json);
  const Json& model = Member(file.json, "model");
  if (!model.is_object())
    return Fail(Code::kInvalidArgument, "the tokenizer is JSON, but no tokenizer.json: it has no model");
  const std::string type = ModelType(file.json);
  if (type != "BPE" && type != "WordPiece" && type != "WordLevel" && type != "Unigram") {
    return Fail(Code::kUnsupported, "the tokenizer's model ({}) is not supported", type);
  }
  const Json& vocabulary = Member(model, "vocab");
  MR_TRY(type == "Unigram" ? ReadScores(vocabulary, file) : ReadVocabulary(vocabulary, file));
  MR_TRY(ReadAddedTokens(file));
  MR_TRY(CheckAddedIds(file));
  FindEnds(file);
  if (type == "BPE") return MakeBpe(std::move(file), std::move(fingerprint));
  if (type == "WordPiece") return MakeBert(std::move(file), std::move(fingerprint));
  return MakePipeline(std::move(file), std::move(fingerprint));
}

}  // namespace millrace::tokenizer
