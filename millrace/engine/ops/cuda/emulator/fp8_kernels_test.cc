// Casts to 8 bits, against the rounding of single numbers.
#include "millrace/engine/ops/cuda/quantized/fp8_kernels.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

#include "millrace/engine/ops/cuda/emulator/kernel_test.h"

namespace millrace::engine::cuda::emulator {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

struct CodesSize {
  std::int64_t rows, columns;
  std::size_t all() const { return static_cast<std::size_t>(rows * columns); }
  std::size_t at(std::int64_t row, std::int64_t column) const {
    return static_cast<std::size_t>(row * columns + column);
  }
};
constexpr CodesSize kCodesSizes[] = {{16, 16}, {128, 128}, {144, 272}, {400, 16}, {16, 528}, {304, 640}};

/// Numbers of many magnitudes, so that some are subnormal and some are rounded to zero.
Numbers NumbersOf(const CodesSize& size) {
  Numbers x = Random(size.all(), 1, 1);
  const Numbers exponents = Random(size.all(), 6, 2);
  for (std::size_t i = 0; i < x.size(); ++i) x[i] *= std::exp2(exponents[i]);
  return Rounded(Element::kBfloat16, x);
}
float LargestOf(const Numbers& x) {
  float largest = 0;
  for (const float value : x) largest = std::max(largest, std::abs(value));
  return largest;
}

/// Bytes that begin at a multiple of 16.
class Bytes {
 public:
  explicit Bytes(std::size_t count) : memory_(Element::kFloat, Numbers((count + 3) / 4, -1.0F)) {}
  std::uint8_t* data() { return static_cast<std::uint8_t*>(memory_.data()); }

 private:
  Memory memory_;
};

/// Casts x by cast(operand) and returns the codes and then the transposed ones, as numbers.
Numbers CastTo(Fp8Format format, const Numbers& x, const CodesSize& size,
               const std::function<void(const Fp8Operand&)>& cast, bool codes = true, bool transposed = true) {
  Memory memory(Element::kBfloat16, x);
  Bytes of_rows(size.all()), of_columns(size.all());
  cast({.x = memory.data(),
        .codes = codes ? of_rows.data() : nullptr,
        .transposed = transposed ? of_columns.data() : nullptr,
        .rows = size.rows,
        .columns = size.columns});
  Numbers numbers;
  for (Bytes* bytes : {&of_rows, &of_columns}) {
    for (std::size_t i = 0; i < size.all(); ++i) numbers.push_back(FromFp8(format, bytes->data()[i]));
  }
  return numbers;
}

/// Holds codes and transposed codes against those of single numbers, with the factor of (row, column).
void ExpectCodes(Fp8Format format, const Numbers& got, const Numbers& x, const CodesSize& size,
                 const std::function<float(std::int64_t, std::int64_t)>& encode,
                 const std::function<float(std::int64_t, std::int64_t)>& encode_transposed) {
  for (std::int64_t row = 0; row < size.rows; ++row) {
    for (std::int64_t column = 0; column < size.columns; ++column) {
      const float value = x[size.at(row, column)];
      ASSERT_EQ(got[size.at(row, column)], FromFp8(format, ToFp8(format, value * encode(row, column))))
          << row << ", " << column;
      ASSERT_EQ(got[size.all() + static_cast<std::size_t>(column * size.rows + row)],
                FromFp8(format, ToFp8(format, value * encode_transposed(row, column))))
          << row << ", " << column;
    }
  }
}

TEST(Fp8Kernels, AMatrixHasOneScale) {
  for (const CodesSize& size : kCodesSizes) {
    const Numbers x = NumbersOf(size);
    for (const Fp8Format format : {Fp8Format::kE4m3, Fp8Format::kE5m2}) {
      Numbers got = InEveryOrder([&] {
        float largest = -1, decode = -1;
        const Numbers codes = CastTo(format, x, size, [&](const Fp8Operand& of) {
          FindLargest(of.x, of.rows * of.columns, &largest, nullptr);
          CastToFp8(format, of, {&largest, &decode}, nullptr);
        });
        return Join({largest, decode}, codes);
      });
      const Fp8Scale scale = Fp8ScaleOf(format, LargestOf(x));
      EXPECT_EQ(Take(got, 2), (Numbers{LargestOf(x), scale.decode}));
      const auto encode = [&](std::int64_t, std::int64_t) { return scale.encode; };
      ExpectCodes(format, got, x, size, encode, encode);
    }
  }
}

TEST(Fp8Kernels, TheLargestIsNanIfThereIsOne) {
  constexpr CodesSize kSize{32, 128};
  Numbers x = NumbersOf(kSize);
  const auto largest = [&] {
    return InEveryOrder([&] {
      Memory memory(Element::kBfloat16, x);
      float found = -1;
      FindLargest(memory.data(), kSize.rows * kSize.columns, &found, nullptr);
      return Numbers{found};
    })[0];
  };
  x[77] = -kInfinity;
  EXPECT_EQ(largest(), kInfinity);
  x[4095] = NAN;
  EXPECT_TRUE(std::isnan(largest()));
}

TEST(Fp8Kernels, AGuessedScaleSaturatesAndSeesTheLargest) {
  constexpr CodesSize kSize{48, 144};
  Numbers x = Rounded(Element::kBfloat16, Random(kSize.all(), 1, 3));
  constexpr Fp8Format kFormat = Fp8Format::kE4m3;
  const float guess = LargestOf(x) / 4;
  const auto cast = [&](float before) {
    return InEveryOrder([&] {
      float decode = -1, seen = before;
      const Numbers codes = CastTo(
          kFormat, x, kSize, [&](const Fp8Operand& of) { CastToFp8(kFormat, of, {&guess, &decode, &seen}, nullptr); });
      return Join({decode, seen}, codes);
    });
  };
  const Fp8Scale scale = Fp8ScaleOf(kFormat, guess);
  const auto encode = [&](std::int64_t, std::int64_t) { return scale.encode; };
  Numbers got = cast(0);
  EXPECT_EQ(Take(got, 2), (Numbers{scale.decode, LargestOf(x)}));
  ExpectCodes(kFormat, got, x, kSize, encode, encode);
  EXPECT_EQ(LargestOf(got), 448);
  // What was seen before counts if it is larger.
  EXPECT_EQ(cast(1000)[1], 1000);
  // An infinite number is none that saturates.
  x[5] = kInfinity;
  x[700] = -kInfinity;
  got = cast(0);
  EXPECT_EQ(got[1], kInfinity);
  Take(got, 2);
  EXPECT_TRUE(std::isnan(got[5]) && std::isnan(got[700]));
  EXPECT_EQ(std::ranges::count_if(got, [](float code) { return std::isnan(code); }), 4);
  x[6] = NAN;
  EXPECT_TRUE(std::isnan(cast(0)[1]));
}

std::int64_t Blocks(std::int64_t elements) { return (elements + kFp8Block - 1) / kFp8Block; }

/// Returns the largest absolute value of the part of x from (row, column) on.
float LargestOfPart(const Numbers& x, const CodesSize& size, std::int64_t row, std::int64_t column, std::int64_t rows,
                    std::int64_t columns) {
  float largest = 0;
  for (std::int64_t i = row; i < std::min(row + rows, size.rows); ++i) {
    for (std::int64_t j = column; j < std::min(column + columns, size.columns); ++j) {
      largest = std::max(largest, std::abs(x[size.at(i, j)]));
    }
  }
  return largest;
}
Fp8Scale ScaleOfPart(const Numbers& x, const CodesSize& size, std::int64_t row, std::int64_t column, std::int64_t rows,
                     std::int64_t columns) {
  return Fp8ScaleOf(Fp8Format::kE4m3, LargestOfPart(x, size, row, column, rows, columns));
}
std::int64_t Begin(std::int64_t i) { return i / kFp8Block * kFp8Block; }

TEST(Fp8Kernels, BlocksOfLinesHaveScales) {
  for (const CodesSize& size : kCodesSizes) {
    Numbers x = NumbersOf(size);
    std::fill_n(x.begin(), 16, 0.0F);  // a block of zeros, if it is one
    const auto factors = static_cast<std::size_t>(Blocks(size.columns) * size.rows);
    const auto factors_transposed = static_cast<std::size_t>(Blocks(size.rows) * size.columns);
    Numbers got = InEveryOrder([&] {
      Numbers decode(factors, NAN), decode_transposed(factors_transposed, NAN);
      const Numbers codes = CastTo(Fp8Format::kE4m3, x, size, [&](const Fp8Operand& of) {
        CastLinesToFp8(of, {decode.data(), decode_transposed.data()}, nullptr);
      });
      return Join(decode, decode_transposed, codes);
    });
    const Numbers decode = Take(got, factors), decode_transposed = Take(got, factors_transposed);
    const auto of_row = [&](std::int64_t row, std::int64_t column) {
      return ScaleOfPart(x, size, row, Begin(column), 1, kFp8Block);
    };
    const auto of_column = [&](std::int64_t row, std::int64_t column) {
      return ScaleOfPart(x, size, Begin(row), column, kFp8Block, 1);
    };
    for (std::int64_t row = 0; row < size.rows; ++row) {
      for (std::int64_t column = 0; column < size.columns; ++column) {
        const auto at = static_cast<std::size_t>(column / kFp8Block * size.rows + row);
        const auto at_transposed = static_cast<std::size_t>(row / kFp8Block * size.columns + column);
        ASSERT_EQ(decode[at], of_row(row, column).decode);
        ASSERT_EQ(decode_transposed[at_transposed], of_column(row, column).decode);
      }
    }
    ExpectCodes(
        Fp8Format::kE4m3, got, x, size, [&](auto row, auto column) { return of_row(row, column).encode; },
        [&](auto row, auto column) { return of_column(row, column).encode; });
  }
}

TEST(Fp8Kernels, SquaresHaveScales) {
  for (const CodesSize& size : kCodesSizes) {
    const Numbers x = NumbersOf(size);
    const std::int64_t stride = Fp8SquareStride(size.columns), stride_transposed = Fp8SquareStride(size.rows);
    EXPECT_TRUE(stride % 4 == 0 && stride >= Blocks(size.columns) && stride < Blocks(size.columns) + 4);
    const auto factors = static_cast<std::size_t>(Blocks(size.rows) * stride);
    const auto factors_transposed = static_cast<std::size_t>(Blocks(size.columns) * stride_transposed);
    Numbers got = InEveryOrder([&] {
      Numbers decode(factors), decode_transposed(factors_transposed);
      const Numbers codes = CastTo(Fp8Format::kE4m3, x, size, [&](const Fp8Operand& of) {
        CastSquaresToFp8(of, {decode.data(), decode_transposed.data()}, nullptr);
      });
      return Join(decode, decode_transposed, codes);
    });
    const Numbers decode = Take(got, factors), decode_transposed = Take(got, factors_transposed);
    Numbers encodes(factors);
    for (std::int64_t row = 0; row < Blocks(size.rows); ++row) {
      for (std::int64_t column = 0; column < Blocks(size.columns); ++column) {
        const Fp8Scale want = ScaleOfPart(x, size, row * kFp8Block, column * kFp8Block, kFp8Block, kFp8Block);
        encodes[static_cast<std::size_t>(row * stride + column)] = want.encode;
        ASSERT_EQ(decode[static_cast<std::size_t>(row * stride + column)], want.decode);
        ASSERT_EQ(decode_transposed[static_cast<std::size_t>(column * stride_transposed + row)], want.decode);
      }
    }
    const auto encode = [&](std::int64_t row, std::int64_t column) {
      return encodes[static_cast<std::size_t>(row / kFp8Block * stride + column / kFp8Block)];
    };
    ExpectCodes(Fp8Format::kE4m3, got, x, size, encode, encode);
  }
}

TEST(Fp8Kernels, OneOfBothIsEnough) {
  constexpr CodesSize kSize{144, 272};
  const Numbers x = NumbersOf(kSize);
  const auto run = [&](auto&& cast) {
    const Numbers both = cast(true, true), codes = cast(true, false), transposed = cast(false, true);
    const auto half = static_cast<std::ptrdiff_t>(kSize.all());
    EXPECT_TRUE(std::equal(codes.begin(), codes.begin() + half, both.begin()));
    EXPECT_TRUE(std::equal(transposed.begin() + half, transposed.end(), both.begin() + half));
  };
  run([&](bool codes, bool transposed) {
    float largest = 0, decode = 0;
    return CastTo(
        Fp8Format::kE5m2, x, kSize,
        [&](const Fp8Operand& of) {
          FindLargest(of.x, of.rows * of.columns, &largest, nullptr);
          CastToFp8(Fp8Format::kE5m2, of, {&largest, &decode}, nullptr);
        },
        codes, transposed);
  });
  run([&](bool codes, bool transposed) {
    Numbers decode(static_cast<std::size_t>(3 * kSize.rows)), other(static_cast<std::size_t>(2 * kSize.columns));
    return CastTo(
        Fp8Format::kE4m3, x, kSize,
        [&](const Fp8Operand& of) {
          CastLinesToFp8(of, {codes ? decode.data() : nullptr, transposed ? other.data() : nullptr}, nullptr);
        },
        codes, transposed);
  });
  run([&](bool codes, bool transposed) {
    Numbers decode(8), other(12);
    return CastTo(
        Fp8Format::kE4m3, x, kSize,
        [&](const Fp8Operand& of) {
          CastSquaresToFp8(of, {codes ? decode.data() : nullptr, transposed ? other.data() : nullptr}, nullptr);
        },
        codes, transposed);
  });
}

}  // namespace
}  // namespace millrace::engine::cuda::emulator
