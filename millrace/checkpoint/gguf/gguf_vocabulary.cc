#include "millrace/checkpoint/gguf/gguf_vocabulary.h"

#include <bit>
#include <cstring>
#include <functional>

#include "millrace/base/json.h"
#include "millrace/checkpoint/gguf/gguf_byte_level.h"

namespace millrace::checkpoint {
namespace {

// Numbers of fields and values of sentencepiece_model.proto.
constexpr std::uint32_t kPieces = 1, kTrainer = 2, kNormalizer = 3;
constexpr std::uint32_t kPieceText = 1, kPieceScore = 2, kPieceType = 3;
constexpr std::uint32_t kModelType = 3, kByteFallback = 35, kUnknownId = 40, kBosId = 41, kEosId = 42, kPadId = 43;
constexpr std::uint32_t kNormalizerName = 1, kAddDummyPrefix = 3, kRemoveExtraSpaces = 4, kEscapeSpaces = 5;
constexpr std::uint64_t kBpe = 2, kNormalPiece = 1, kUnusedPiece = 5;
// Wire types of protocol buffers.
constexpr std::uint32_t kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5;

constexpr double kUnusedScore = -1000;  ///< as convert_hf_to_gguf.py
constexpr std::string_view kPrefix = "tokenizer.ggml.";

std::string VocabularyKey(std::string_view name) { return fmt::format("{}{}", kPrefix, name); }

void AppendVarint(std::string& out, std::uint64_t number) {
  for (; number >= 0x80; number >>= 7) out += static_cast<char>(number | 0x80);
  out += static_cast<char>(number);
}
void AppendNumber(std::string& out, std::uint32_t field, std::uint64_t number) {
  AppendVarint(out, field << 3 | kVarint);
  AppendVarint(out, number);
}
void AppendBytes(std::string& out, std::uint32_t field, std::string_view bytes) {
  AppendVarint(out, field << 3 | kBytes);
  AppendVarint(out, bytes.size());
  out += bytes;
}
void AppendFloat(std::string& out, std::uint32_t field, float number) {
  AppendVarint(out, field << 3 | kFixed32);
  out.resize(out.size() + sizeof number);
  std::memcpy(out.data() + out.size() - sizeof number, &number, sizeof number);
}

/// A field of a message. Numbers and floats are in `number`, as their bits.
struct Field {
  std::uint32_t number_of_field = 0;
  std::uint64_t number = 0;
  std::string_view bytes;
};

/// Calls `take` with the fields of a message. Returns false if it is damaged or `take` does.
bool ForEachField(std::string_view message, const std::function<bool(const Field&)>& take) {
  const auto varint = [&]() -> std::optional<std::uint64_t> {
    std::uint64_t number = 0;
    for (int shift = 0; shift < 64 && !message.empty(); shift += 7) {
      const auto byte = static_cast<unsigned char>(message.front());
      message.remove_prefix(1);
      number |= static_cast<std::uint64_t>(byte & 0x7f) << shift;
      if (byte < 0x80) return number;
    }
    return std::nullopt;
  };
  while (!message.empty()) {
    const auto tag = varint();
    if (!tag) return false;
    Field field{.number_of_field = static_cast<std::uint32_t>(*tag >> 3)};
    const auto wire = static_cast<std::uint32_t>(*tag & 7);
    std::uint64_t size = 0;
    if (wire == kVarint) {
      const auto number = varint();
      if (!number) return false;
      field.number = *number;
    } else if (wire == kBytes) {
      const auto length = varint();
      if (!length) return false;
      size = *length;
    } else if (wire == kFixed32 || wire == kFixed64) {
      size = wire == kFixed32 ? 4 : 8;
    } else {
      return false;
    }
    if (size > message.size()) return false;
    field.bytes = message.substr(0, size);
    message.remove_prefix(size);
    if (wire == kFixed32) {
      std::uint32_t bits = 0;
      std::memcpy(&bits, field.bytes.data(), sizeof bits);
      field.number = bits;
    }
    if (!take(field)) return false;
  }
  return true;
}

/// Returns a tokenizer_config.json of what the file says beside its vocabulary. llama.cpp begins texts of such
/// vocabularies with the token for it unless the file says otherwise.
std::string SentencePieceConfigOf(const GgufHeader& header) {
  const auto flag = [&](std::string_view name, bool absent) {
    const auto* says = header.Find<bool>(VocabularyKey(name));
    return says != nullptr ? *says : absent;
  };
  Json config{{"tokenizer_class", "LlamaTokenizer"},
              {"legacy", false},
              {"clean_up_tokenization_spaces", false},
              {"add_bos_token", flag("add_bos_token", true)},
              {"add_eos_token", flag("add_eos_token", false)}};
  const auto& tokens = *header.Find<std::vector<std::string>>(VocabularyKey("tokens"));
  for (const auto& [role, name, absent] : {std::tuple("bos_token", "bos_token_id", 1),
                                           {"eos_token", "eos_token_id", 2},
                                           {"unk_token", "unknown_token_id", 0},
                                           {"pad_token", "padding_token_id", -1}}) {
    const auto* says = header.Find<std::int64_t>(VocabularyKey(name));
    const std::int64_t id = says != nullptr ? *says : absent;
    if (id >= 0 && static_cast<std::uint64_t>(id) < tokens.size()) config[role] = tokens[static_cast<std::size_t>(id)];
  }
  if (const auto* chat = header.Find<std::string>("tokenizer.chat_template")) config["chat_template"] = *chat;
  return DumpJsonPretty(config) + "\n";
}

/// Returns a generation_config.json with the tokens that end a text, an answer or a call.
std::string GenerationConfigOf(const GgufHeader& header) {
  Json ends = Json::array();
  for (const char* name : {"eos_token_id", "eot_token_id", "eom_token_id"}) {
    if (const auto* id = header.Find<std::int64_t>(VocabularyKey(name)); id != nullptr && *id >= 0) ends.push_back(*id);
  }
  return DumpJsonPretty(Json{{"eos_token_id", std::move(ends)}}) + "\n";
}

GgufTokenizer ReadTokenizer(const GgufHeader& header) {
  const auto* kind = header.Find<std::string>(VocabularyKey("model"));
  if (kind == nullptr) return {.refusal = "the file has no tokenizer"};
  if (*kind == "llama") {
    auto model = SentencePieceOf(header);
    if (!model) return {.refusal = "its vocabulary lacks scores or types of tokens"};
    return {
        .files = {{"tokenizer.model", *std::move(model)}, {"tokenizer_config.json", SentencePieceConfigOf(header)}}};
  }
  if (*kind == "gpt2") {
    auto files = ByteLevelFilesOf(header);
    if (!files) return {.refusal = files.error().message()};
    return {.files = *std::move(files)};
  }
  return {.refusal =
              fmt::format("its tokenizer is of the kind {}; llama (SentencePiece's BPE) and gpt2 (byte-level BPE) "
                          "can be read",
                          *kind)};
}

}  // namespace

GgufTokenizer TokenizerOf(const GgufHeader& header) {
  GgufTokenizer tokenizer = ReadTokenizer(header);
  if (!tokenizer.files.empty()) tokenizer.files["generation_config.json"] = GenerationConfigOf(header);
  return tokenizer;
}

std::optional<std::string> SentencePieceOf(const GgufHeader& header) {
  const auto* kind = header.Find<std::string>(VocabularyKey("model"));
  const auto* tokens = header.Find<std::vector<std::string>>(VocabularyKey("tokens"));
  const auto* scores = header.Find<std::vector<double>>(VocabularyKey("scores"));
  const auto* types = header.Find<std::vector<std::int64_t>>(VocabularyKey("token_type"));
  if (kind == nullptr || *kind != "llama" || tokens == nullptr || scores == nullptr || types == nullptr ||
      scores->size() != tokens->size() || types->size() != tokens->size())
    return std::nullopt;
  std::string model;
  for (std::size_t i = 0; i < tokens->size(); ++i) {
    std::string piece;
    AppendBytes(piece, kPieceText, (*tokens)[i]);
    AppendFloat(piece, kPieceScore, static_cast<float>((*scores)[i]));
    AppendNumber(piece, kPieceType, static_cast<std::uint64_t>((*types)[i]));
    AppendBytes(model, kPieces, piece);
  }
  std::string trainer, normalizer;
  AppendNumber(trainer, kModelType, kBpe);
  AppendNumber(trainer, kByteFallback, 1);
  const auto id = [&](std::string_view name, std::uint32_t field, std::int64_t absent) {
    const auto* says = header.Find<std::int64_t>(VocabularyKey(name));
    AppendNumber(trainer, field, static_cast<std::uint64_t>(says != nullptr ? *says : absent));
  };
  id("unknown_token_id", kUnknownId, 0);
  id("bos_token_id", kBosId, 1);
  id("eos_token_id", kEosId, 2);
  id("padding_token_id", kPadId, -1);
  const auto* space = header.Find<bool>(VocabularyKey("add_space_prefix"));
  AppendBytes(normalizer, kNormalizerName, "identity");
  AppendNumber(normalizer, kAddDummyPrefix, space == nullptr || *space ? 1 : 0);
  AppendNumber(normalizer, kRemoveExtraSpaces, 0);
  AppendNumber(normalizer, kEscapeSpaces, 1);
  AppendBytes(model, kTrainer, trainer);
  AppendBytes(model, kNormalizer, normalizer);
  return model;
}

bool AddSentencePiece(std::string_view tokenizer_model, std::uint64_t tokens,
                      std::map<std::string, GgufValue>& metadata) {
  std::vector<std::string> pieces;
  std::vector<double> scores;
  std::vector<std::int64_t> types;
  std::uint64_t model_type = 1;  // the protocol's defaults
  std::int64_t unknown = 0, bos = 1, eos = 2, pad = -1;
  bool adds_space = true;
  const bool read = ForEachField(tokenizer_model, [&](const Field& field) {
    if (field.number_of_field == kPieces) {
      pieces.emplace_back();
      scores.push_back(0);
      types.push_back(kNormalPiece);
      return pieces.size() <= tokens && ForEachField(field.bytes, [&](const Field& part) {
               if (part.number_of_field == kPieceText) pieces.back() = part.bytes;
               if (part.number_of_field == kPieceScore)
                 scores.back() = std::bit_cast<float>(static_cast<std::uint32_t>(part.number));
               if (part.number_of_field == kPieceType) types.back() = static_cast<std::int64_t>(part.number & 7);
               return true;
             });
    }
    if (field.number_of_field == kTrainer) {
      return ForEachField(field.bytes, [&](const Field& part) {
        const auto id = static_cast<std::int32_t>(part.number);
        if (part.number_of_field == kModelType) model_type = part.number;
        if (part.number_of_field == kUnknownId) unknown = id;
        if (part.number_of_field == kBosId) bos = id;
        if (part.number_of_field == kEosId) eos = id;
        if (part.number_of_field == kPadId) pad = id;
        return true;
      });
    }
    if (field.number_of_field == kNormalizer) {
      return ForEachField(field.bytes, [&](const Field& part) {
        if (part.number_of_field == kAddDummyPrefix) adds_space = part.number != 0;
        return true;
      });
    }
    return true;
  });
  if (!read || pieces.empty() || model_type != kBpe) return false;
  while (pieces.size() < tokens) {
    pieces.push_back(fmt::format("[PAD{}]", pieces.size()));
    scores.push_back(kUnusedScore);
    types.push_back(kUnusedPiece);
  }
  metadata[VocabularyKey("model")] = std::string("llama");
  metadata[VocabularyKey("pre")] = std::string("default");
  metadata[VocabularyKey("tokens")] = std::move(pieces);
  metadata[VocabularyKey("scores")] = std::move(scores);
  metadata[VocabularyKey("token_type")] = std::move(types);
  metadata[VocabularyKey("add_space_prefix")] = adds_space;
  for (const auto& [name, id] : {std::pair("unknown_token_id", unknown),
                                 {"bos_token_id", bos},
                                 {"eos_token_id", eos},
                                 {"padding_token_id", pad}}) {
    if (id >= 0) metadata[VocabularyKey(name)] = id;
  }
  return true;
}

}  // namespace millrace::checkpoint
