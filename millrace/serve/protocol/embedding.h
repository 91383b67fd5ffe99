// Requests and answers of /v1/embeddings, as OpenAI's clients say and read them.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/base/json.h"
#include "millrace/serve/protocol/answer.h"
#include "millrace/serve/protocol/request.h"

namespace millrace::serve {

struct EmbeddingRequest {
  std::string model;           ///< empty: not given
  std::vector<Prompt> inputs;  ///< at least one
  bool base64 = false;         ///< the vectors as bytes: little-endian float32
  int dimensions = 0;          ///< the number of first elements of each vector to return, scaled to length 1; 0: all
};

/// Parses the body. Unknown members are errors.
Parsed<EmbeddingRequest> ParseEmbedding(const Json& body, const RequestLimits& limits);

/// Returns why the vectors, of `elements` each, are too many for an answer in JSON numbers, if they are.
std::optional<ApiError> CheckAnswer(const EmbeddingRequest& request, std::size_t elements);

/// Keeps the first `dimensions` elements and stretches them to length 1.
/// REQUIRES: 0 < dimensions <= vector.size().
void Shorten(std::vector<float>& vector, int dimensions);

Json EmbeddingAnswer(const EmbeddingRequest& request, std::span<const std::vector<float>> vectors,
                     std::string_view model, const Usage& usage);

}  // namespace millrace::serve
