// A training state of random tensors, for tests. Splits the state among ranks, and checks that a reader returns it.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "millrace/base/hash/random.h"
#include "millrace/checkpoint/format/manifest.h"
#include "millrace/checkpoint/read/reader.h"
#include "millrace/checkpoint/save/save_slice.h"

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
      tensor.meta.dtype = static_cast<DType>(random.Below(kDTypes));
      if (i > 0)
        tensor.meta.shape = {static_cast<std::int64_t>(random.Below(max_elements / 4)), 4};  // the first: scalar
      tensor.bytes.resize(tensor.meta.bytes());
      for (std::byte& byte : tensor.bytes) byte = static_cast<std::byte>(random.Next());
      state.tensors.emplace(fmt::format("{}/t{}", i % 2 ? "optimizer" : "model", i), std::move(tensor));
    }
    return state;
  }

  /// Returns random slices for each of `ranks` that cover every tensor.
  std::vector<std::vector<SaveSlice>> Share(int ranks, std::uint64_t seed) const {
    millrace::Random random(seed);
    std::vector<std::vector<SaveSlice>> shares(ranks);
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

  /// As Share, but splits tensors into random boxes, and some boxes into runs. `bytes` receives the boxes' elements and
  /// must outlive the slices.
  std::vector<std::vector<SaveSlice>> ShareBoxes(int ranks, std::uint64_t seed,
                                                 std::vector<std::vector<std::byte>>& bytes) const {
    millrace::Random random(seed);
    std::vector<std::vector<SaveSlice>> shares(ranks);
    for (const auto& [name, tensor] : tensors) {
      for (const Box& box : Grid(tensor.meta.shape, random)) {
        const std::uint64_t element = DTypeBytes(tensor.meta.dtype), total = ElementsOf(box, tensor.meta.shape);
        bytes.push_back(BoxBytes(tensor, box));
        for (std::uint64_t begin = 0; begin < total || (begin == 0 && total == 0);) {
          const std::uint64_t take = random.Below(3) ? total - begin : random.Below(total - begin + 1);
          ByteSpan run = ByteSpan(bytes.back()).subspan(begin * element, take * element);
          if (take > 0 || total == 0) shares[random.Below(ranks)].push_back({name, tensor.meta, begin, run, box});
          if (total == 0) break;
          begin += take;
        }
      }
    }
    return shares;
  }
  /// Returns the box's elements, computed from their indexes one by one.
  static std::vector<std::byte> BoxBytes(const Tensor& tensor, const Box& box) {
    if (box.whole()) return tensor.bytes;
    const std::uint64_t element = DTypeBytes(tensor.meta.dtype), total = ElementsOf(box, tensor.meta.shape);
    std::vector<std::byte> bytes;
    for (std::uint64_t i = 0; i < total; ++i) {
      std::uint64_t rest = i, place = 0, stride = 1;
      for (std::size_t d = box.lengths.size(); d-- > 0; rest /= box.lengths[d]) {
        place += (box.offsets[d] + rest % box.lengths[d]) * stride;
        stride *= static_cast<std::uint64_t>(tensor.meta.shape[d]);
      }
      const auto from = tensor.bytes.begin() + static_cast<long>(place * element);
      bytes.insert(bytes.end(), from, from + static_cast<long>(element));
    }
    return bytes;
  }
  /// Returns random boxes that cover the shape: repeatedly splits a random box along a random dimension.
  static std::vector<Box> Grid(const std::vector<std::int64_t>& shape, millrace::Random& random) {
    std::vector<Box> boxes{Box{}};
    if (shape.empty()) return boxes;
    boxes[0] = {std::vector<std::uint64_t>(shape.size(), 0), {shape.begin(), shape.end()}};
    for (int cuts = static_cast<int>(random.Below(6)); cuts > 0; --cuts) {
      Box& box = boxes[random.Below(boxes.size())];
      const std::size_t d = random.Below(shape.size());
      if (box.lengths[d] < 2) continue;
      const std::uint64_t at = 1 + random.Below(box.lengths[d] - 1);
      Box upper = box;
      upper.offsets[d] += at;
      upper.lengths[d] -= at;
      box.lengths[d] = at;
      boxes.push_back(std::move(upper));
    }
    return boxes;
  }

  /// Reads every tensor in `ranks` runs, as that many ranks would, and compares the bytes.
  void ExpectReadBack(Reader& reader, int ranks) const {
    ASSERT_EQ(reader.manifest().tensors.size(), tensors.size());
    std::map<std::string, std::vector<std::byte>> read;
    for (const auto& [name, tensor] : tensors) read[name].resize(tensor.bytes.size());
    for (int rank = 0; rank < ranks; ++rank) {
      std::vector<Reader::TensorRange> wanted;
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
