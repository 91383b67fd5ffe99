#include "millrace/serve/protocol/embedding.h"

#include <algorithm>
#include <array>
#include <bit>
#include <charconv>
#include <cmath>
#include <cstdlib>

#include "millrace/base/bytes.h"
#include "millrace/base/hash/text_encoding.h"
#include "millrace/serve/protocol/body_reader.h"
#include "millrace/serve/protocol/prompts.h"

namespace millrace::serve {
namespace {

/// The most elements of an answer in JSON. A guess: as numbers they take some 30 bytes each, and twice that on their
/// way.
constexpr std::size_t kMaxNumbers = std::size_t{1} << 21;

/// Returns the double of the fewest digits that name this float. So JSON has "0.1" and not "0.10000000149011612".
double FewDigits(float value) {
  std::array<char, 32> text{};
  *std::to_chars(text.data(), text.data() + text.size() - 1, value).ptr = '\0';
  return std::strtod(text.data(), nullptr);
}

Json Element(const std::vector<float>& vector, bool base64) {
  static_assert(std::endian::native == std::endian::little);
  if (base64) return Base64Encode(std::as_bytes(std::span(vector)));
  Json numbers = Json::array();
  for (const float value : vector) numbers.push_back(FewDigits(value));
  return numbers;
}

}  // namespace

Parsed<EmbeddingRequest> ParseEmbedding(const Json& body, const RequestLimits& limits) {
  if (!body.is_object()) return std::unexpected(ApiError{.message = "the body should be a JSON object"});
  EmbeddingRequest request;
  BodyReader reader(body);
  ReadPrompts(reader, "input", limits.max_inputs, request.inputs);
  reader.Text("model", request.model);
  std::string format = "float", user;
  reader.Text("encoding_format", format);
  if (format != "float" && format != "base64") {
    reader.Refuse("encoding_format", "encoding_format should be \"float\" or \"base64\"");
  }
  request.base64 = format == "base64";
  if (const auto dimensions = reader.Integer("dimensions", 1, 1 << 20)) {
    request.dimensions = static_cast<int>(*dimensions);
  }
  reader.Text("user", user);
  reader.RejectUnknown();
  if (!reader.good()) return std::unexpected(reader.error());
  return request;
}

std::optional<ApiError> CheckAnswer(const EmbeddingRequest& request, std::size_t elements) {
  const std::size_t kept =
      request.dimensions > 0 ? std::min(elements, static_cast<std::size_t>(request.dimensions)) : elements;
  if (request.base64 || request.inputs.size() * kept <= kMaxNumbers) return std::nullopt;
  return ApiError{
      .message = fmt::format("an answer of {} inputs with {} elements each is too large for JSON numbers, of "
                             "which it may have {}: ask for encoding_format \"base64\", or give fewer "
                             "inputs",
                             request.inputs.size(), kept, kMaxNumbers),
      .param = "input"};
}

void Shorten(std::vector<float>& vector, int dimensions) {
  vector.resize(static_cast<std::size_t>(dimensions));
  double squares = 0;
  for (const float value : vector) squares += static_cast<double>(value) * value;
  const double length = std::sqrt(squares);
  if (length == 0) return;
  for (float& value : vector) value = static_cast<float>(value / length);
}

Json EmbeddingAnswer(const EmbeddingRequest& request, std::span<const std::vector<float>> vectors,
                     std::string_view model, const Usage& usage) {
  Json data = Json::array();
  for (std::size_t i = 0; i < vectors.size(); ++i) {
    data.push_back({{"object", "embedding"}, {"index", i}, {"embedding", Element(vectors[i], request.base64)}});
  }
  return {{"object", "list"},
          {"data", std::move(data)},
          {"model", model},
          {"usage", {{"prompt_tokens", usage.prompt}, {"total_tokens", usage.prompt}}}};
}

}  // namespace millrace::serve
