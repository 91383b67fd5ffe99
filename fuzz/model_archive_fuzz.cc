// Any archive is refused, or is read within its bounds, also when the checksums of its headers hold.
#include <cstdio>
#include <cstdlib>
#include <string>

#include "millrace/checkpoint/convert/tar_stream.h"

namespace {

using namespace millrace;

class Counting final : public checkpoint::TarVisitor {
 public:
  Status Begin(const std::string& name, std::uint64_t size) override {
    if (name.empty() || name.front() == '/' || name.find("..") == 0) std::abort();
    left_ = size;
    return {};
  }
  Status Data(ByteSpan bytes) override {
    if (bytes.size() > left_) std::abort();
    left_ -= bytes.size();
    return {};
  }
  Status End() override {
    if (left_ != 0) std::abort();
    return {};
  }

 private:
  std::uint64_t left_ = 0;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  std::string bytes(reinterpret_cast<const char*>(data), size);
  for (std::size_t block = 0; block + 512 <= bytes.size(); block += 512) {
    bytes.replace(block + 148, 8, "        ");
    unsigned sum = 0;
    for (std::size_t i = 0; i < 512; ++i) sum += static_cast<unsigned char>(bytes[block + i]);
    if (sum == 8 * ' ') {
      bytes.replace(block + 148, 8, std::string(8, '\0'));  // keeps the block of zeros that ends an archive
      continue;
    }
    std::snprintf(bytes.data() + block + 148, 8, "%06o", sum);
  }
  Counting counting;
  checkpoint::TarStream tar("fuzz", counting);
  if (tar.Add(AsBytes(bytes))) (void)tar.Finish();
  return 0;
}
