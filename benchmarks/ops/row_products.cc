// Times products of few rows with a weight in 32, 16, 8 and 4 bits, as a server's steps make them: one thread, CPU
// time.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdint>
#include <ctime>
#include <functional>
#include <limits>
#include <new>
#include <random>
#include <vector>

#include "millrace/engine/ops/cpu/coded_product.h"
#include "millrace/engine/ops/cpu/row_product.h"

namespace millrace {
namespace {

using engine::cpu::Bf16;
using engine::cpu::CodedProduct;
using engine::cpu::kCodedColumns;

double CpuSeconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

/// Memory as tensors have it: from the start of a line of the cache.
template <class T>
struct LineAllocator {
  using value_type = T;
  static constexpr std::align_val_t kLine{64};
  LineAllocator() = default;
  template <class U>
  LineAllocator(const LineAllocator<U>&) {}  // NOLINT(google-explicit-constructor): containers convert allocators
  T* allocate(std::size_t count) { return static_cast<T*>(operator new(count * sizeof(T), kLine)); }
  void deallocate(T* memory, std::size_t) { operator delete(memory, kLine); }
  bool operator==(const LineAllocator&) const = default;
};
template <class T>
using Lines = std::vector<T, LineAllocator<T>>;

/// A weight [columns, inner] of random numbers and codes, and rows to multiply with it.
class Products {
 public:
  Products(std::int64_t columns, std::int64_t inner, std::int64_t most_rows)
      : columns_(columns),
        inner_(inner),
        f32_(Draw(columns * inner)),
        codes_(f32_.size()),
        x_(Draw(most_rows * inner)),
        ordered_(x_.size()),
        out_(static_cast<std::size_t>(most_rows * columns)),
        out_bf16_(out_.size()),
        scales_(Draw(columns * inner / kBlock)),
        map_(Draw(16)) {
    for (const float number : f32_) bf16_.push_back(engine::cpu::FromFloat<Bf16>(number));
    for (const float number : x_) x_bf16_.push_back(engine::cpu::FromFloat<Bf16>(number));
    for (std::uint8_t& code : codes_) code = static_cast<std::uint8_t>(random_());
    engine::cpu::OrderForNf4(x_.data(), most_rows * inner, ordered_.data());
  }

  void InF32(std::int64_t rows) {
    engine::cpu::RowProduct<float>{x_.data(), f32_.data(), nullptr, out_.data(), rows, columns_, inner_}.Run(0,
                                                                                                             columns_);
  }
  void InBf16(std::int64_t rows) {
    engine::cpu::RowProduct<Bf16>{x_bf16_.data(), bf16_.data(), nullptr, out_bf16_.data(), rows, columns_, inner_}.Run(
        0, columns_);
  }
  void InInt8(std::int64_t rows) {
    const auto* const codes = reinterpret_cast<const std::int8_t*>(codes_.data());
    for (std::int64_t first = 0; first < columns_; first += kCodedColumns) {
      CodedProduct<engine::cpu::Int8Columns>{x_.data(),     {codes + first * inner_, inner_, scales_.data() + first},
                                             nullptr,       out_.data() + first,
                                             columns_,      rows,
                                             kCodedColumns, inner_}
          .Run();
    }
  }
  void InFp8(std::int64_t rows) {
    for (std::int64_t first = 0; first < columns_; first += kCodedColumns) {
      CodedProduct<engine::cpu::Fp8Columns>{
          x_.data(),     {codes_.data() + first * inner_, inner_, scales_.data() + first},
          nullptr,       out_.data() + first,
          columns_,      rows,
          kCodedColumns, inner_}
          .Run();
    }
  }
  void InNf4(std::int64_t rows) {
    const std::int64_t blocks = inner_ / kBlock;
    for (std::int64_t first = 0; first < columns_; first += kCodedColumns) {
      CodedProduct<engine::cpu::Nf4Columns>{ordered_.data(),
                                            {codes_.data() + first * inner_ / 2, inner_ / 2, map_.data(),
                                             scales_.data() + first * blocks, blocks, kBlockBits},
                                            nullptr,
                                            out_.data() + first,
                                            columns_,
                                            rows,
                                            kCodedColumns,
                                            inner_}
          .Run();
    }
  }

 private:
  static constexpr int kBlockBits = 6;
  static constexpr std::int64_t kBlock = 1 << kBlockBits;

  Lines<float> Draw(std::int64_t count) {
    Lines<float> numbers(static_cast<std::size_t>(count));
    std::uniform_real_distribution<float> draw(-1, 1);
    for (float& number : numbers) number = draw(random_);
    return numbers;
  }

  std::mt19937 random_{1};
  std::int64_t columns_, inner_;
  Lines<float> f32_;
  Lines<std::uint8_t> codes_;
  Lines<float> x_, ordered_, out_;
  Lines<Bf16> out_bf16_;
  Lines<float> scales_, map_;
  Lines<Bf16> bf16_, x_bf16_;
};

/// Returns the least CPU seconds of some calls.
double Best(int rounds, const std::function<void()>& call) {
  double best = std::numeric_limits<double>::infinity();
  for (int round = 0; round < rounds; ++round) {
    const double start = CpuSeconds();
    call();
    best = std::min(best, CpuSeconds() - start);
  }
  return best;
}

}  // namespace
}  // namespace millrace

int main(int argc, char** argv) {
  using millrace::Best;
  std::int64_t columns = 16384, inner = 2048;
  std::vector<std::int64_t> rows{1, 2, 4, 8, 24, 32, 96};
  int rounds = 6;
  CLI::App app{"Time products of few rows with a weight in 32, 16, 8 and 4 bits"};
  app.add_option("--columns", columns, "Rows of the weight in memory: a multiple of 32")->capture_default_str();
  app.add_option("--inner", inner, "Its elements a row: a multiple of 64")->capture_default_str();
  app.add_option("--rows", rows, "How many rows it is multiplied with")
      ->delimiter(',')
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--rounds", rounds, "Calls, of which the quickest counts")->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  if (columns % 32 != 0 || inner % 64 != 0 || columns <= 0 || inner <= 0 || rows.empty()) {
    fmt::print(stderr, "row_products: --columns must be a multiple of 32, and --inner of 64\n");
    return 2;
  }
  millrace::Products products(columns, inner, *std::ranges::max_element(rows));
  fmt::print("{:>5} {:>20} {:>20} {:>20} {:>20} {:>20}\n", "rows", "f32", "bf16", "int8", "fp8", "NF4");
  for (const std::int64_t count : rows) {
    const double f32 = Best(rounds, [&] { products.InF32(count); });
    fmt::print("{:5} {:17.2f} ms", count, 1e3 * f32);
    for (const double other :
         {Best(rounds, [&] { products.InBf16(count); }), Best(rounds, [&] { products.InInt8(count); }),
          Best(rounds, [&] { products.InFp8(count); }), Best(rounds, [&] { products.InNf4(count); })}) {
      fmt::print(" {:10.2f} ms {:4.1f}x", 1e3 * other, f32 / other);
    }
    fmt::print("\n");
  }
}
