#include "millrace/tokenizer/sentencepiece/sentencepiece_model.h"

#include <cstdint>
#include <functional>
#include <optional>

namespace millrace::tokenizer {
namespace {

/// One field of a protobuf message: a number for varints, bytes for everything that has a length.
struct Field {
  std::uint32_t number = 0;
  std::uint64_t varint = 0;
  ByteSpan bytes;
};

/// Walks the fields of one protobuf message (developers.google.com/protocol-buffers: "Encoding").
class FieldReader {
 public:
  explicit FieldReader(ByteSpan message) : rest_(message) {}

  bool done() const { return rest_.empty(); }

  /// Returns nothing if the bytes are not a protobuf message.
  std::optional<Field> Next() {
    auto tag = Varint();
    if (!tag || *tag >> 3 == 0 || *tag >> 3 > 536'870'911) return std::nullopt;
    Field field{.number = static_cast<std::uint32_t>(*tag >> 3)};
    switch (*tag & 7) {
      case 0: {
        auto value = Varint();
        if (!value) return std::nullopt;
        field.varint = *value;
        return field;
      }
      case 1:
        return Take(8, field);
      case 2: {
        auto length = Varint();
        return length ? Take(*length, field) : std::nullopt;
      }
      case 5:
        return Take(4, field);
      default:
        return std::nullopt;
    }
  }

 private:
  std::optional<std::uint64_t> Varint() {
    std::uint64_t value = 0;
    for (int shift = 0; shift < 64 && !rest_.empty(); shift += 7) {
      auto byte = static_cast<std::uint8_t>(rest_.front());
      rest_ = rest_.subspan(1);
      value |= static_cast<std::uint64_t>(byte & 0x7F) << shift;
      if ((byte & 0x80) == 0) return value;
    }
    return std::nullopt;
  }

  std::optional<Field> Take(std::uint64_t length, Field field) {
    if (length > rest_.size()) return std::nullopt;
    field.bytes = rest_.first(length);
    rest_ = rest_.subspan(length);
    return field;
  }

  ByteSpan rest_;
};

/// Returns false if the bytes are not a protobuf message.
bool ForEachField(ByteSpan message, const std::function<void(const Field&)>& visit) {
  FieldReader reader(message);
  while (!reader.done()) {
    auto field = reader.Next();
    if (!field) return false;
    visit(*field);
  }
  return true;
}

}  // namespace

std::string MarksToSpaces(std::string_view piece) {
  std::string text;
  for (std::size_t mark; (mark = piece.find(kSpaceMark)) != piece.npos; piece.remove_prefix(mark + kSpaceMark.size())) {
    text.append(piece, 0, mark) += ' ';
  }
  return text += piece;
}

Result<SentencePieceModel> ReadSentencePieceModel(ByteSpan bytes) {
  SentencePieceModel model;
  SentencePieceTraits& traits = model.traits;
  bool well_formed = true;
  auto text = [](const Field& field) { return std::string(AsText(field.bytes)); };
  auto piece_field = [&](const Field& field) {
    SentencePieceModel::ScoredPiece& piece = model.pieces.back();
    if (field.number == 1) piece.text = AsText(field.bytes);
    if (field.number == 2 && field.bytes.size() == 4) piece.score = LoadLittle<float>(field.bytes.data());
    if (field.number == 3 && field.varint >= 1 && field.varint <= 6) {
      piece.type = static_cast<SentencePieceModel::Type>(field.varint);
    }
  };
  auto trainer_field = [&](const Field& field) {
    if (field.number == 3 && field.varint >= 1 && field.varint <= 4) {
      traits.algorithm = static_cast<SentencePieceTraits::Algorithm>(field.varint);
    }
    if (field.number == 24) traits.whitespace_is_suffix = field.varint != 0;
    if (field.number == 35) traits.byte_fallback = field.varint != 0;
    if (field.number == 45) traits.unk_piece = text(field);
    if (field.number == 46) traits.bos_piece = text(field);
    if (field.number == 47) traits.eos_piece = text(field);
    if (field.number == 48) traits.pad_piece = text(field);
  };
  auto normalizer_field = [&](const Field& field) {
    if (field.number == 2) {
      traits.has_character_map = !field.bytes.empty();
      model.character_map = field.bytes;
    }
    if (field.number == 3) traits.add_dummy_prefix = field.varint != 0;
    if (field.number == 4) traits.remove_extra_whitespaces = field.varint != 0;
    if (field.number == 5) traits.escape_whitespaces = field.varint != 0;
  };
  auto denormalizer_field = [&](const Field& field) {
    if (field.number == 2) traits.has_reverse_character_map = !field.bytes.empty();
  };
  bool outer = ForEachField(bytes, [&](const Field& field) {
    if (field.number == 1) {
      model.pieces.emplace_back();
      well_formed &= ForEachField(field.bytes, piece_field);
    }
    if (field.number == 2) well_formed &= ForEachField(field.bytes, trainer_field);
    if (field.number == 3) well_formed &= ForEachField(field.bytes, normalizer_field);
    if (field.number == 5) well_formed &= ForEachField(field.bytes, denormalizer_field);
  });
  traits.pieces = static_cast<int>(model.pieces.size());
  if (!outer || !well_formed || traits.pieces == 0) {
    return Fail(
        Code::kInvalidArgument,
        "not a SentencePiece model ({} bytes); expected the .model file of spm_train or of `millrace tokenizer train`",
        bytes.size());
  }
  return model;
}

}  // namespace millrace::tokenizer
