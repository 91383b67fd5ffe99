// Chooses how many tokens of prompts a step computes beside texts that wait for their next token.
#pragma once

#include <array>
#include <cstddef>
#include <optional>

#include "millrace/base/clock.h"

namespace millrace::serve {

/// Learns from the times of steps how long a token of a prompt takes. Gives prompts as many tokens as hardly delay the
/// texts beside them: few on a processor that computes slowly, many on a GPU. Not thread-safe.
class PromptPace {
 public:
  struct Options {
    std::size_t first = 64;             ///< tokens of prompts in a step, until enough steps were timed
    std::size_t least = 8, most = 256;  ///< the bounds from then on
    /// The longest time of a step with prompts, divided by that of a step without, beside as many texts as usual.
    /// Beside more texts, which make a step longer themselves, there is less room for prompts. 0: `first`.
    double slowdown = 2;
    Duration unnoticed = std::chrono::milliseconds(10);  ///< and may always take so long
  };
  explicit PromptPace(const Options& options) : options_(options) {}

  /// Notes a step that computed `waiting` tokens of texts that wait for their next one, and `prompt` tokens of prompts.
  void AddStep(std::size_t waiting, std::size_t prompt, Duration took);
  /// Returns how many tokens of prompts the next step may have beside `waiting` others; at least `least`.
  std::size_t Tokens(std::size_t waiting) const;

 private:
  struct Step {
    double tokens = 0, seconds = 0;
  };
  /// The last steps of a kind. Medians, because other programs delay single steps.
  class Recent {
   public:
    void Add(const Step& step) { steps_[count_++ % steps_.size()] = step; }
    std::optional<Step> Median() const;  ///< nothing until there are some

   private:
    std::array<Step, 31> steps_;
    std::size_t count_ = 0;
  };

  /// Returns the tokens that usually wait: the median over recent tokens of those that waited with them. So half of
  /// all times between tokens are of steps with as many texts or more.
  double Usual() const;

  const Options options_;
  Recent plain_, mixed_;                    ///< steps without and with tokens of prompts
  std::array<std::size_t, 127> waiting_{};  ///< in the last steps
  std::size_t steps_ = 0;
};

}  // namespace millrace::serve
