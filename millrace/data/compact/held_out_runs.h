// The texts that a training set must not contain, as runs of words.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

namespace millrace::data {

/// Tells whether a text shares a run of `length` words with a held-out text, as in "Language Models are Few-Shot
/// Learners" (Brown et al., 2020, appendix C), where a run has 13 words. Unlike there, frequent runs count too. A
/// held-out text with fewer words is found where a whole text has the same words. Takes 16 to 32 bytes a run. Add() is
/// for one thread; then any thread may call Shares().
class HeldOutRuns {
 public:
  /// REQUIRES: length > 0.
  explicit HeldOutRuns(std::size_t length) : length_(length) {}
  void Add(std::string_view text);
  /// `words` are those of HashWords(). `runs` is working memory.
  bool Shares(const std::vector<std::uint64_t>& words, std::vector<std::uint64_t>& runs) const;
  std::size_t size() const { return used_; }  ///< different runs
  std::uint64_t bytes() const { return slots_.capacity() * sizeof(std::uint64_t); }

 private:
  std::size_t SlotOf(std::uint64_t run) const;
  void Grow();

  const std::size_t length_;
  std::vector<std::uint64_t> slots_;  ///< open addressing; a power of two; 0: empty
  std::size_t used_ = 0;
  std::vector<std::uint64_t> words_, runs_;
};

}  // namespace millrace::data
