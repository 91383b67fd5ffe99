// The numbers of codes, and products with them.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <random>

#include "millrace/engine/ops/cuda/emulator/kernel_test.h"
#include "millrace/engine/ops/cuda/quantized/coded_kernels.h"
#include "millrace/engine/quantized/code_maps.h"

namespace millrace::engine::cuda::emulator {
namespace {

/// Numbers in memory of exactly their size that begins at a vector.
template <class T>
class Array {
 public:
  explicit Array(const std::vector<T>& values)
      : memory_(static_cast<T*>(::operator new[](std::max<std::size_t>(1, values.size() * sizeof(T)), kVector))) {
    std::ranges::copy(values, memory_.get());
  }
  const T* data() const { return memory_.get(); }

 private:
  static constexpr std::align_val_t kVector{16};
  struct Free {
    void operator()(T* values) const { ::operator delete[](values, kVector); }
  };
  std::unique_ptr<T[], Free> memory_;
};

template <class T>
std::vector<T> RandomBytes(std::size_t count, unsigned seed) {
  std::mt19937_64 engine(seed);
  std::vector<T> bytes(count);
  for (T& byte : bytes) byte = static_cast<T>(engine());
  return bytes;
}

/// A matrix of codes and what they stand for.
class Nf4Matrix {
 public:
  enum class Scales { kPlain, kNested };
  Nf4Matrix(std::int64_t rows, std::int64_t columns, Scales scales, int block)
      : codes_(RandomBytes<std::uint8_t>(static_cast<std::size_t>(rows * columns + 1) / 2, 1)),
        nested_codes_(RandomBytes<std::uint8_t>(Blocks(rows * columns, block), 2)),
        map_(Random(16, 1, 3)),
        plain_(Random(Blocks(rows * columns, block), 1, 4)),
        scale_map_(Random(256, 1, 5)),
        scale_scales_(Random(Blocks(rows * columns, block) / kScaleBlock + 1, 1, 6)),
        codes{.codes = codes_.data(),
              .map = map_.data(),
              .block = block,
              .scales = scales == Scales::kNested ? nested_codes_.data() : nullptr,
              .plain_scales = scales == Scales::kPlain ? plain_.data() : nullptr,
              .scale_map = scales == Scales::kNested ? scale_map_.data() : nullptr,
              .scale_scales = scales == Scales::kNested ? scale_scales_.data() : nullptr,
              .scale_block = kScaleBlock,
              .scale_offset = 0.3F} {}

  float Number(std::int64_t element) const {
    const std::int64_t block = element / codes.block;
    const float scale = codes.scales != nullptr
                            ? codes.scale_map[codes.scales[block]] * codes.scale_scales[block / kScaleBlock] + 0.3F
                            : codes.plain_scales[block];
    const int pair = codes.codes[element / 2];
    return codes.map[element % 2 == 0 ? pair >> 4 : pair & 15] * scale;
  }

 private:
  static constexpr int kScaleBlock = 4;
  static std::size_t Blocks(std::int64_t elements, int block) {
    return static_cast<std::size_t>((elements + block - 1) / block);
  }
  Array<std::uint8_t> codes_, nested_codes_;
  Array<float> map_, plain_, scale_map_, scale_scales_;

 public:
  const Nf4Codes codes;
};

/// Bytes with a scale a row: Codes is Int8Codes or Fp8Codes.
template <class Codes>
class ByteMatrix {
  using Code = std::remove_cvref_t<decltype(*Codes::codes)>;

 public:
  ByteMatrix(std::int64_t rows, std::int64_t columns)
      : columns_(columns),
        codes_(RandomBytes<Code>(static_cast<std::size_t>(rows * columns), 1)),
        scales_(Random(static_cast<std::size_t>(rows), 1, 2)),
        codes{.codes = codes_.data(), .scales = scales_.data()} {}

  float Number(std::int64_t element) const {
    const Code code = codes.codes[element];
    float number = static_cast<float>(code);
    if constexpr (std::is_unsigned_v<Code>) number = E4m3Map()[code];
    return number * codes.scales[element / columns_];
  }

 private:
  std::int64_t columns_;
  Array<Code> codes_;
  Array<float> scales_;

 public:
  const Codes codes;
};
using Int8Matrix = ByteMatrix<Int8Codes>;
using Fp8Matrix = ByteMatrix<Fp8Codes>;

template <class Matrix>
Numbers NumbersOf(const Matrix& matrix, const CodedBox& box) {
  Numbers numbers;
  for (std::int64_t row = 0; row < box.rows; ++row) {
    for (std::int64_t column = 0; column < box.columns; ++column) {
      numbers.push_back(matrix.Number(box.first + row * box.row_stride + column));
    }
  }
  return numbers;
}

/// Whole, some rows, some columns that begin and end with vectors, and others.
std::vector<CodedBox> BoxesOf(std::int64_t rows, std::int64_t columns) {
  return {{0, rows, columns, columns},
          {2 * columns, rows - 3, columns, columns},
          {columns + columns / 2, rows - 2, columns / 2, columns},
          {columns + 8, rows - 1, columns - 24, columns},
          {columns + 3, rows - 1, columns - 5, columns}};
}

class CodedKernels : public testing::TestWithParam<Element> {
 protected:
  template <class Matrix>
  static void ExpectNumbers(const Matrix& matrix, const CodedBox& box) {
    for (const bool misaligned : {false, true}) {
      const Numbers got = InEveryOrder([&] {
        Memory out(GetParam(), static_cast<std::size_t>(box.rows * box.columns), misaligned);
        Dequantize(matrix.codes, box, GetParam(), out.data(), nullptr);
        return out.values();
      });
      ExpectNear(got, Rounded(GetParam(), NumbersOf(matrix, box)), 1e-6);
    }
  }

  enum class Way { kRows, kTiles };
  /// Multiplies by each box that can be, and returns how many these are.
  template <class Matrix>
  static int ExpectProducts(Way way, const Matrix& matrix, std::int64_t of_rows, std::int64_t of_columns,
                            std::int64_t rows) {
    int fit = 0;
    for (const CodedBox& box : BoxesOf(of_rows, of_columns)) {
      SCOPED_TRACE(testing::Message() << rows << " rows times " << box.rows << " x " << box.columns << " from "
                                      << box.first);
      const std::int64_t x_stride = box.columns + 8, out_stride = box.rows + 3;
      const Numbers x = Rounded(GetParam(), Random(static_cast<std::size_t>(rows * x_stride), 1, 11));
      const Numbers bias = Rounded(GetParam(), Random(static_cast<std::size_t>(box.rows), 1, 12));
      CodedProductArgs args{.rows = rows, .x_stride = x_stride, .out_stride = out_stride, .box = box};
      const auto fits = way == Way::kRows ? FitsCodedRows(GetParam(), matrix.codes, args)
                                          : FitsCodedTiles(GetParam(), matrix.codes, args);
      if (!fits) continue;
      ++fit;
      for (const bool has_bias : {false, true}) {
        const Numbers got = InEveryOrder(
            [&] {
              Memory of_x(GetParam(), x), of_bias(GetParam(), bias);
              Memory out(GetParam(), Numbers(static_cast<std::size_t>(rows * out_stride), -7));
              args.x = of_x.data();
              args.bias = has_bias ? of_bias.data() : nullptr;
              args.out = out.data();
              if (way == Way::kRows) {
                MultiplyCodedRows(GetParam(), matrix.codes, args, nullptr);
              } else {
                Numbers scratch(static_cast<std::size_t>(CodedTilesScratch(args)), NAN);
                MultiplyCodedTiles(GetParam(), matrix.codes, args, scratch.data(), nullptr);
              }
              return out.values();
            },
            {.multiprocessors = 1});  // so that a block makes several groups of outputs
        const Numbers weight = NumbersOf(matrix, box);
        Numbers want(got.size(), -7);  // what is beside the columns stays
        for (std::int64_t row = 0; row < rows; ++row) {
          for (std::int64_t output = 0; output < box.rows; ++output) {
            double sum = has_bias ? bias[static_cast<std::size_t>(output)] : 0;
            for (std::int64_t i = 0; i < box.columns; ++i) {
              sum += static_cast<double>(x[static_cast<std::size_t>(row * x_stride + i)]) *
                     weight[static_cast<std::size_t>(output * box.columns + i)];
            }
            want[static_cast<std::size_t>(row * out_stride + output)] = static_cast<float>(sum);
          }
        }
        ExpectNear(got, want, ToleranceOf(GetParam()) / 2);
      }
    }
    return fit;
  }
};
INSTANTIATE_TEST_SUITE_P(Elements, CodedKernels, testing::ValuesIn(kElements));

TEST_P(CodedKernels, NumbersOfNf4) {
  for (const auto scales : {Nf4Matrix::Scales::kPlain, Nf4Matrix::Scales::kNested}) {
    for (const int block : {2, 16, 64}) {
      const Nf4Matrix matrix(9, 128, scales, block);
      for (const CodedBox& box : BoxesOf(9, 128)) ExpectNumbers(matrix, box);
    }
    const Nf4Matrix odd(5, 33, scales, 64);
    ExpectNumbers(odd, {0, 5, 33, 33});
  }
}

TEST_P(CodedKernels, NumbersOfBytes) {
  for (const std::int64_t columns : {128, 33}) {
    for (const CodedBox& box : BoxesOf(9, columns)) {
      ExpectNumbers(Int8Matrix(9, columns), box);
      ExpectNumbers(Fp8Matrix(9, columns), box);
    }
  }
}

TEST_P(CodedKernels, FewRowsTimesNf4) {
  for (const auto scales : {Nf4Matrix::Scales::kPlain, Nf4Matrix::Scales::kNested}) {
    for (std::int64_t rows = 1; rows <= kMaxCodedRows; ++rows) {
      const Nf4Matrix small(45, 128, scales, 64), wide(21, 4096 + 256, scales, 32);
      EXPECT_EQ(ExpectProducts(Way::kRows, small, 45, 128, rows), 3);
      EXPECT_EQ(ExpectProducts(Way::kRows, wide, 21, 4096 + 256, rows), 3);
    }
  }
}

TEST_P(CodedKernels, FewRowsTimesBytes) {
  for (std::int64_t rows = 1; rows <= kMaxCodedRows; ++rows) {
    EXPECT_EQ(ExpectProducts(Way::kRows, Int8Matrix(45, 96), 45, 96, rows), 3);
    EXPECT_EQ(ExpectProducts(Way::kRows, Fp8Matrix(45, 96), 45, 96, rows), 3);
    EXPECT_EQ(ExpectProducts(Way::kRows, Int8Matrix(21, 4096 + 32), 21, 4096 + 32, rows), 3);
    EXPECT_EQ(ExpectProducts(Way::kRows, Fp8Matrix(21, 4096 + 32), 21, 4096 + 32, rows), 3);
  }
}

TEST_P(CodedKernels, TilesTimesNf4) {
  const int boxes = GetParam() == Element::kFloat ? 0 : 3;
  for (const auto scales : {Nf4Matrix::Scales::kPlain, Nf4Matrix::Scales::kNested}) {
    const Nf4Matrix matrix(70, 320, scales, 32), wide(7, 1152, scales, 64);
    for (const std::int64_t rows : {5, 17, 33}) EXPECT_EQ(ExpectProducts(Way::kTiles, matrix, 70, 320, rows), boxes);
    EXPECT_EQ(ExpectProducts(Way::kTiles, wide, 7, 1152, 16), boxes);
  }
}

TEST_P(CodedKernels, TilesTimesBytes) {
  const int boxes = GetParam() == Element::kFloat ? 0 : 3;
  for (const std::int64_t rows : {1, 16, 32, 70}) {
    EXPECT_EQ(ExpectProducts(Way::kTiles, Int8Matrix(70, 320), 70, 320, rows), boxes);
    EXPECT_EQ(ExpectProducts(Way::kTiles, Fp8Matrix(70, 320), 70, 320, rows), boxes);
  }
  EXPECT_EQ(ExpectProducts(Way::kTiles, Int8Matrix(7, 1152), 7, 1152, 9), boxes);
  EXPECT_EQ(ExpectProducts(Way::kTiles, Fp8Matrix(7, 1152), 7, 1152, 9), boxes);
}

}  // namespace
}  // namespace millrace::engine::cuda::emulator
