// An aws-chunked body is refused or gives the same bytes and trailers however it arrives and is read. The first byte
// picks whether chunks are signed and trailers follow, the second how many bytes arrive at a time.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <string>

#include "millrace/s3d/operations/fake_request.h"
#include "millrace/s3d/protocol/payload.h"

namespace {

using namespace millrace;

struct Outcome {
  std::string error, bytes;
  std::map<std::string, std::string> trailers;
  bool operator==(const Outcome&) const = default;
};

Outcome ReadAll(const std::string& body, unsigned kind, std::size_t piece, std::size_t ask) {
  s3d::FakeRequest request("PUT", "/b/k", body);
  request.set_piece(piece);
  s3d::Authenticated who{.date = "20130524T000000Z", .scope = "20130524/us-east-1/s3/aws4_request"};
  s3d::ChunkReader reader(request, (kind & 1U) != 0 ? &who : nullptr, (kind & 2U) != 0);
  Outcome outcome;
  Buffer scratch(ask);
  for (;;) {
    auto got = reader.Read(scratch.span());
    if (!got) return {.error = got.error().code};
    if (*got == 0) break;
    outcome.bytes.append(AsText(scratch.span().first(*got)));
  }
  if (outcome.bytes.size() > body.size()) std::abort();
  outcome.trailers = reader.trailers();
  return outcome;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 2) return 0;
  const std::string body(reinterpret_cast<const char*>(data) + 2, size - 2);
  const Outcome whole = ReadAll(body, data[0], SIZE_MAX, 64 * kKiB);
  if (ReadAll(body, data[0], 1 + data[1] % 16U, 1 + data[1] / 16U) != whole) std::abort();
  return 0;
}
