// A training state of random tensors, how ranks share it, and the proof that a reader gives it back: for tests.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "millrace/base/random.h"
#include "millrace/checkpoint/checkpoint.h"

namespace millrace::checkpoint::testing {

/// Named tensors with content.
struct State {
  struct Tensor {
    TensorMeta meta;
    std::vector<std::byte> bytes;
  };
  std::map<std::string, Tensor> tensors;

  static State Random(std::uint64_t seed, int count = 8, std::uint64_t max_elements = 4000) {
    millrace::Random random(seed);
    State state;
    for (int i = 0; i < count; ++i) {
      Tensor tensor;
      tensor.meta.dtype = static_cast<DType>(random.Below(7));
      if (i > 0)
        tensor.meta.shape = {static_cast<std::int64_t>(random.Below(max_elements / 4)), 4};  // the first: scalar
      tensor.bytes.resize(tensor.meta.bytes());
      for (std::byte& byte : tensor.bytes) byte = static_cast<std::byte>(random.Next());
      state.tensors.emplace(fmt::format("{}/t{}", i % 2 ? "optimizer" : "model", i), std::move(tensor));
    }
    return state;
  }

  /// What each of `ranks` saves: every tensor cut at random places, pieces dealt at random.
  std::vector<std::vector<SavePiece>> Share(int ranks, std::uint64_t seed) const {
    millrace::Random random(seed);
    std::vector<std::vector<SavePiece>> shares(ranks);
    for (const auto& [name, tensor] : tensors) {
      const std::uint64_t total = tensor.meta.elements(), element = DTypeBytes(tensor.meta.dtype);
      std::uint64_t begin = 0;
      do {
        std::uint64_t take = random.Below(2) ? total - begin : random.Below(total - begin) + 1;
        take = std::min(take, total - begin);
        shares[random.Below(ranks)].push_back(
            {name, tensor.meta, begin, ByteSpan(tensor.bytes).subspan(begin * element, take * element)});
        begin += take;
      } while (begin < total);
    }
    return shares;
  }

  /// Reads everything as `ranks` ranks would, each a stretch of every tensor, and compares.
  void ExpectReadBack(Reader& reader, int ranks) const {
    ASSERT_EQ(reader.manifest().tensors.size(), tensors.size());
    std::map<std::string, std::vector<std::byte>> read;
    for (const auto& [name, tensor] : tensors) read[name].resize(tensor.bytes.size());
    for (int rank = 0; rank < ranks; ++rank) {
      std::vector<Reader::Wanted> wanted;
      for (const auto& [name, tensor] : tensors) {
        const std::uint64_t total = tensor.meta.elements(), element = DTypeBytes(tensor.meta.dtype);
        const std::uint64_t begin = total * rank / ranks, end = total * (rank + 1) / ranks;
        wanted.push_back({name, begin, MutableByteSpan(read[name]).subspan(begin * element, (end - begin) * element)});
      }
      auto status = reader.ReadMany(wanted, 2);
      ASSERT_TRUE(status) << status.error().ToString();
    }
    for (const auto& [name, tensor] : tensors) {
      EXPECT_EQ(reader.manifest().tensors.at(name), tensor.meta) << name;
      EXPECT_TRUE(read[name] == tensor.bytes) << name;
    }
  }
};

}  // namespace millrace::checkpoint::testing
