// Any bytes are either refused or an index whose every record lies inside its object. The checksum is made
// valid: an attacker can compute it too.
#include <cstdlib>
#include <string>

#include "millrace/base/hash/crc.h"
#include "millrace/data/records/record_index.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace millrace;
  using namespace millrace::data;
  std::string bytes(reinterpret_cast<const char*>(data), size);
  std::uint32_t crc = Crc32c(AsBytes(bytes));
  bytes.append(reinterpret_cast<const char*>(&crc), sizeof crc);
  const IndexIdentity identity{"e", 1 << 20, "{text}", ""};
  auto index = RecordIndex::Parse(bytes, identity);
  if (!index) return 0;
  std::vector<RecordExtent> extents;
  for (std::size_t i = 0; i < index->blocks(); ++i) index->Decode(i, extents);
  if (extents.size() != index->records()) std::abort();
  for (const RecordExtent& extent : extents) {
    if (extent.offset + extent.bytes > identity.size) std::abort();
  }
  return 0;
}
