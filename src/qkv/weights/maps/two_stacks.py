"""The layers of an encoder and a decoder as Hugging Face's transformers names them in many families."""

# fmt: off
LAYERS = [
    ("model.encoder.layers.{}.self_attn.q_proj",          "encoder.blocks.{}.attention.mixer.project.query"),
    ("model.encoder.layers.{}.self_attn.k_proj",          "encoder.blocks.{}.attention.mixer.project.key"),
    ("model.encoder.layers.{}.self_attn.v_proj",          "encoder.blocks.{}.attention.mixer.project.value"),
    ("model.encoder.layers.{}.self_attn.out_proj",        "encoder.blocks.{}.attention.mixer.out"),
    ("model.encoder.layers.{}.self_attn_layer_norm",      "encoder.blocks.{}.attention.norm"),
    ("model.encoder.layers.{}.fc1",                       "encoder.blocks.{}.feed_forward.mixer.inner"),
    ("model.encoder.layers.{}.fc2",                       "encoder.blocks.{}.feed_forward.mixer.outer"),
    ("model.encoder.layers.{}.final_layer_norm",          "encoder.blocks.{}.feed_forward.norm"),
    ("model.decoder.layers.{}.self_attn.q_proj",          "decoder.blocks.{}.attention.mixer.project.query"),
    ("model.decoder.layers.{}.self_attn.k_proj",          "decoder.blocks.{}.attention.mixer.project.key"),
    ("model.decoder.layers.{}.self_attn.v_proj",          "decoder.blocks.{}.attention.mixer.project.value"),
    ("model.decoder.layers.{}.self_attn.out_proj",        "decoder.blocks.{}.attention.mixer.out"),
    ("model.decoder.layers.{}.self_attn_layer_norm",      "decoder.blocks.{}.attention.norm"),
    ("model.decoder.layers.{}.encoder_attn.q_proj",       "decoder.blocks.{}.cross.mixer.query"),
    ("model.decoder.layers.{}.encoder_attn.k_proj",       "decoder.blocks.{}.cross.mixer.project.key"),
    ("model.decoder.layers.{}.encoder_attn.v_proj",       "decoder.blocks.{}.cross.mixer.project.value"),
    ("model.decoder.layers.{}.encoder_attn.out_proj",     "decoder.blocks.{}.cross.mixer.out"),
    ("model.decoder.layers.{}.encoder_attn_layer_norm",   "decoder.blocks.{}.cross.norm"),
    ("model.decoder.layers.{}.fc1",                       "decoder.blocks.{}.feed_forward.mixer.inner"),
    ("model.decoder.layers.{}.fc2",                       "decoder.blocks.{}.feed_forward.mixer.outer"),
    ("model.decoder.layers.{}.final_layer_norm",          "decoder.blocks.{}.feed_forward.norm"),
]
# fmt: on
