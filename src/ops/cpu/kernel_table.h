// Makes the table of kernels for one kind of vectors; included by the files that are compiled for them.
#pragma once

#include "ops/cpu/attention_kernels.h"
#include "ops/cpu/elementwise_kernels.h"
#include "ops/cpu/linear_kernels.h"
#include "ops/cpu/quantised_kernels.h"
#include "ops/cpu/sampling_kernels.h"

namespace zipage::cpu {

template <class S>
constexpr Kernels kernel_table() {
  return {
      .panel = panel<S>,
      .nibble_panel = quantised_panel<S, Nibbles<S>>,
      .byte_panel = quantised_panel<S, Bytes<S>>,
      .group_sums = group_sums_row<S>,
      .segment = segment<S>,
      .merge_values = merge_values<S>,
      .rms_norm = rms_norm_row<S>,
      .add = add_row<S>,
      .silu_mul = silu_mul_row<S>,
      .rope = rope_row<S>,
      .exp_sum = exp_sum_row<S>,
      .finite_copy = finite_copy<S>,
      .block_maxima = block_maxima<S>,
      .shift_scale = shift_scale<S>,
      .noise_bound = noise_bound<S>,
  };
}

}  // namespace zipage::cpu
