// The division of a model's blocks into the stages of a pipeline. Arithmetic only.
#pragma once

#include <cstdint>
#include <vector>

namespace millrace::engine {

/// Blocks [first, last) of a stage.
struct BlockRange {
  std::int64_t first = 0, last = 0;
  std::int64_t count() const { return last - first; }
  bool operator==(const BlockRange&) const = default;
};

/// Divides `blocks` equal blocks into `ranks` · `virtual_stages` stages, in order. Rank r computes the stages r,
/// r + ranks, … The last stage also has a head whose work is that of `head` blocks. A stage has no block only if there
/// are fewer blocks than stages.
///
/// The slowest rank has as little work as possible; then each rank's largest stage does. Of several such divisions, the
/// one is taken in which the last rank has fewest blocks. Blocks that are left over go to the first ranks, and of a
/// rank to its later stages: with these rules, steps that stage_division_test.cc simulates take least time.
/// REQUIRES: blocks >= 0, head >= 0, ranks >= 1, virtual_stages >= 1.
std::vector<BlockRange> DivideBlocks(std::int64_t blocks, double head, std::int64_t ranks,
                                     std::int64_t virtual_stages = 1);

}  // namespace millrace::engine
