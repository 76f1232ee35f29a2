// The parts there are, a line each.
#pragma once

#include "model/parts/part.h"

namespace invar {

std::unique_ptr<LayerPart> make_join(const PartPlace& place);
std::unique_ptr<LayerPart> make_residual_block(const PartPlace& place);
std::unique_ptr<LayerPart> make_attention(const PartPlace& place);
std::unique_ptr<LayerPart> make_latent_attention(const PartPlace& place);
std::unique_ptr<LayerPart> make_recurrent(const PartPlace& place);
std::unique_ptr<LayerPart> make_channel_delta(const PartPlace& place);
std::unique_ptr<LayerPart> make_short_conv(const PartPlace& place);
std::unique_ptr<LayerPart> make_state_space(const PartPlace& place);
std::unique_ptr<LayerPart> make_dense_ffn(const PartPlace& place);
std::unique_ptr<LayerPart> make_experts(const PartPlace& place);
std::unique_ptr<LayerPart> make_layer_end(const PartPlace& place);

}  // namespace invar
