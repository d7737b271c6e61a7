// What fp8 keys and values are divided by before they are stored, a number for every layer and KV head.
//
// e4m3 has four exponent bits: a head whose keys reach past 448 loses its largest ones, one whose values are tiny all
// precision. So the model's own numbers decide, at start: a batch of made-up tokens runs over KV in bf16, and each
// head's largest value, with headroom for prompts that reach further, becomes the format's largest. Scales are powers
// of two: they change no mantissa.
#pragma once

#include <vector>

#include "model/decoder.h"

namespace zipage {

struct KvScales {
  std::vector<float> k, v;  // [num_layers * num_kv_heads]
};

// The scale for numbers of which the largest seen was `largest`; 1 for a head that has none, or no finite one.
float fp8_scale(float largest);

// Of the pool's geometry, whose type does not matter. Uses the decoder's activations and up to `max_tokens` tokens.
KvScales calibrate_kv_scales(Backend& backend, Queue& queue, Decoder& decoder, const KvGeometry& geometry,
                             int vocab_size, int max_tokens);

}  // namespace zipage
